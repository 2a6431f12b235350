"""Training rows without audio that teach the LLM to write what it hears, and not what it remembers.

Minutes of speech hold a few hundred texts, which an LLM soon knows by heart; then it completes them instead of
listening. So some rows of a batch are repeated with other words: those of all its transcripts in a random order. What
would be heard of them is made up by the adapter's bank of posteriors (`CTCGuidedAdapter.simulate`).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nemo_speech.collections.speechlm2.modules.answers import rewrite_answers
from nemo_speech.collections.speechlm2.modules.perception import PerceptionOutput

if TYPE_CHECKING:
    from nemo_speech.collections.speechlm2.models.salm import SALM


def shuffled_texts(transcripts: Sequence[str], count: int) -> list[str]:
    """`count` texts as long as random ones of `transcripts`, of words drawn from all of them."""
    words = [word for text in transcripts for word in text.split()]
    texts = []
    for like in torch.randint(len(transcripts), (count,)).tolist():
        length = max(1, len(transcripts[like].split()))
        texts.append(' '.join(words[i] for i in torch.randint(len(words), (length,)).tolist()))
    return texts


def add_copying_rows(
    model: 'SALM', batch: Mapping[str, Any], audio: PerceptionOutput, count: int
) -> tuple[dict[str, Tensor], PerceptionOutput]:
    """Add `count` rows to a batch of one transcribed audio a row; other batches are returned as they are.

    Returns:
        `input_ids`, `attention_mask` and `loss_mask` with the new rows, and perception's output with theirs.
    """
    fields = {key: batch[key] for key in ('input_ids', 'attention_mask', 'loss_mask')}
    answers = [plain_transcript(conversation) for conversation in batch['conversations']]
    usable = [row for row, text in enumerate(answers) if text]
    if not usable or None in answers:
        return fields, audio
    texts = shuffled_texts([text for text in answers if text], count)
    rows = [usable[i] for i in torch.randint(len(usable), (count,)).tolist()]
    new = rewrite_answers(
        batch,
        rows,
        [model.tokenizer.text_to_ids(answers[row]) for row in rows],
        [model.tokenizer.text_to_ids(text) for text in texts],
        model.text_pad_id,
    )
    fill = {'input_ids': model.text_pad_id, 'attention_mask': False, 'loss_mask': False}
    joined = {key: _stack_left_padded(fields[key], new[key], fill[key]) for key in fields}
    embeddings, lens = model.perception.modality_adapter.simulate(texts)
    return joined, PerceptionOutput(
        _stack_right_padded(audio.embeddings, embeddings.to(audio.embeddings.dtype)),
        torch.cat([audio.lens, lens.to(audio.lens)]),
        audio.aux_loss,
        audio.aux_metrics,
    )


def plain_transcript(conversation: Any) -> str | None:
    """The answer of a conversation of one audio and its transcript as the answer; None of any other."""
    from nemo_speech.collections.common.data.conversation import AudioTurn, TextTurn

    audios = [turn for turn in conversation.turns if isinstance(turn, AudioTurn)]
    last = conversation.turns[-1]
    if len(audios) != 1 or not isinstance(last, TextTurn) or last.value != audios[0].text:
        return None
    return last.value


def _stack_left_padded(above: Tensor, below: Tensor, fill: int | bool) -> Tensor:
    width = max(above.shape[1], below.shape[1])
    return torch.cat([pad(rows, (width - rows.shape[1], 0), value=fill) for rows in (above, below)])


def _stack_right_padded(above: Tensor, below: Tensor) -> Tensor:
    length = max(above.shape[1], below.shape[1])
    return torch.cat([pad(rows, (0, 0, 0, length - rows.shape[1])) for rows in (above, below)])
