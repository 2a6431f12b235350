"""Answers of a SALM to a whole set of conversations, with what they cost and how right they are."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from nemo_speech.collections.common.audio import load_audio
from nemo_speech.collections.common.data.conversation import TextTurn
from nemo_speech.collections.common.data.loading_config import LhotseDataLoadingConfig
from nemo_speech.collections.common.data.sources import open_sources
from nemo_speech.collections.common.metrics import TextScores, score_texts
from nemo_speech.collections.common.prompts import PromptFormatter
from nemo_speech.collections.speechlm2.models.endings import cut_at_end
from nemo_speech.collections.speechlm2.models.prompting import PromptBatch, left_pad, pad_waveforms

if TYPE_CHECKING:
    from nemo_speech.collections.speechlm2.models.salm import SALM


@dataclass
class Answer:
    """One line of an output manifest."""

    id: str
    audio_filepath: str | None
    duration: float
    """Seconds of audio."""
    text: str
    """Reference."""
    pred_text: str


@dataclass
class Evaluation:
    """Answers in the order of the input, and their scores."""

    answers: list[Answer]
    scores: TextScores
    real_time_factor_x: float
    """Seconds of audio for each second of work."""

    def summary(self) -> str:
        """The lines a script prints at its end."""
        words = self.scores.words
        return (
            f'WER {self.scores.wer:.2%} ({words.num_reference} words: {words.substitutions} substituted, '
            f'{words.deletions} deleted, {words.insertions} inserted), CER {self.scores.cer:.2%}, '
            f'BLEU {self.scores.bleu:.1f}, RTFx {self.real_time_factor_x:.1f}, {len(self.answers)} utterances'
        )


def evaluate_transcripts(
    model: 'SALM', cuts: Iterable[Any], *, normalizer: str = 'basic', batch_size: int = 64, **options: Any
) -> Evaluation:
    """Transcribe lhotse cuts and score the texts against their supervisions.

    Args:
        model: A SALM in eval mode.
        cuts: Cuts with one or more supervisions with text each.
        normalizer: See `metrics.get_normalizer`.
        batch_size: Pieces run at once.
        **options: Of `transcription.transcribe`.
    """
    cuts = list(cuts)
    started = time.perf_counter()
    texts = model.transcribe(cuts, batch_size=batch_size, **options)
    seconds = time.perf_counter() - started
    answers = [_answer(cut, text) for cut, text in zip(cuts, texts)]
    scores = score_texts([a.text for a in answers], [a.pred_text for a in answers], normalizer)
    return Evaluation(answers, scores, sum(a.duration for a in answers) / max(seconds, 1e-9))


def _answer(cut: Any, text: str) -> Answer:
    sources = cut.recording.sources if cut.has_recording else []
    path = sources[0].source if sources and isinstance(sources[0].source, str) else None
    reference = ' '.join(s.text.strip() for s in cut.supervisions if s.text)
    return Answer(cut.id, path, cut.duration, reference, text)


def read_conversations(inputs: str, model: 'SALM') -> list[Any]:
    """Conversations of a `multimodal_conversation` JSONL, or of the `input_cfg` in a YAML file.

    Raises:
        ConfigError, DataError: See `collections.common.data`.
    """
    jsonl = [{'type': 'multimodal_conversation', 'manifest_filepath': inputs}]
    config = LhotseDataLoadingConfig(
        input_cfg=inputs if inputs.endswith(('.yaml', '.yml')) else jsonl,
        batch_size=1,
        audio_locator_tag=model.audio_locator_tag,
        token_equivalent_duration=model.token_equivalent_duration,
        require_text=False,
        force_finite=True,
    )
    return list(open_sources(config, path='inputs').examples)


@torch.inference_mode()
def answer_conversations(
    model: 'SALM',
    conversations: Iterable[Any],
    *,
    batch_size: int = 64,
    extra_eos_tokens: Sequence[str] = (),
    system_prompt: str | None = None,
    user_prompt: str | None = None,
    verbose: bool = True,
    **generation_kwargs: Any,
) -> list[dict[str, Any]]:
    """Answer conversations; those that end with an assistant turn have it replaced, and kept as `reference`.

    Args:
        model: A SALM in eval mode.
        conversations: `NeMoMultimodalConversation`s; they are not changed.
        batch_size: Conversations answered at once.
        extra_eos_tokens: See `transcription.transcribe`.
        system_prompt: Put first, in place of a system turn that is there.
        user_prompt: Added as a user turn after the last one.
        verbose: Show a progress bar.
        **generation_kwargs: Of `transformers`' `generate`.

    Returns:
        NeMo's `multimodal_conversation` objects, in order, each ending in the answer.
    """
    from tqdm import tqdm

    prompts = [_as_prompt(c, system_prompt, user_prompt) for c in conversations]
    formatter = PromptFormatter.resolve(model.cfg.prompt_format)(model.tokenizer)
    end_ids = model.end_ids(extra_eos_tokens)
    answered = []
    for first in tqdm(range(0, len(prompts), batch_size), desc='Answering', unit='batch', disable=not verbose):
        batch = prompts[first : first + batch_size]
        ids = model.generate_batch(_collate(model, batch, formatter), eos_token_id=end_ids, **generation_kwargs)
        for prompt, row in zip(batch, cut_at_end(ids, {*end_ids, model.text_pad_id})):
            turns = [*prompt.turns, TextTurn(model.tokenizer.ids_to_text(row).strip(), 'assistant')]
            answered.append(replace(prompt, turns=turns).to_dict())
    return answered


def _as_prompt(conversation: Any, system_prompt: str | None, user_prompt: str | None) -> Any:
    """The conversation up to where the answer begins; a reference answer moves to `custom['reference']`."""
    turns, custom = list(conversation.turns), dict(conversation.custom or {})
    answer: list[Any] = []
    while turns and turns[-1].role == 'assistant':
        answer.insert(0, turns.pop())
    if answer:
        custom['reference'] = ' '.join(turn.value for turn in answer if isinstance(turn, TextTurn))
    if system_prompt is not None:
        turns = [TextTurn(system_prompt, 'system'), *(t for t in turns if t.role != 'system')]
    if user_prompt is not None:
        turns.append(TextTurn(user_prompt, 'user'))
    return replace(
        conversation, turns=turns, custom=custom, input_ids=None, context_ids=None, answer_ids=None, mask=None
    )


def _collate(model: 'SALM', conversations: Sequence[Any], formatter: PromptFormatter) -> PromptBatch:
    ids = [c.apply_prompt_format(formatter).context_ids for c in conversations]
    input_ids, token_mask = left_pad(ids, model.text_pad_id)
    waveforms = [
        load_audio(cut.load_audio(), model.sampling_rate, source_rate=cut.sampling_rate)
        for conversation in conversations
        for cut in conversation.list_cuts()
    ]
    audios, lens = pad_waveforms(waveforms) if waveforms else (torch.zeros(0, 0), torch.zeros(0, dtype=torch.long))
    device = model.device
    return PromptBatch(input_ids.to(device), token_mask.to(device), audios.to(device), lens.to(device))
