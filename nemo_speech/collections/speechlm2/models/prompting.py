"""From dialogs or token ids, with audio in one form or another, to one batch that can be generated from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nemo_speech.collections.common.audio import load_audio
from nemo_speech.collections.common.prompts import PromptFormatter
from nemo_speech.collections.common.prompts.text import mark_plain
from nemo_speech.collections.speechlm2.data.dataset import collate_left
from nemo_speech.collections.speechlm2.modules.splicing import leading_pad_mask
from nemo_speech.core.errors import DataError

if TYPE_CHECKING:
    from nemo_speech.collections.speechlm2.models.salm import SALM


@dataclass
class PromptBatch:
    """Prompts that end where the answer begins."""

    input_ids: Tensor  # [B, T] int64, left-padded
    token_mask: Tensor  # [B, T] bool, True = a token
    audios: Tensor  # [N, S] float, one for each tag in order
    audio_lens: Tensor  # [N] samples


def collate_prompts(
    model: 'SALM',
    prompts: Sequence[Sequence[Mapping[str, Any]]] | Tensor,
    audios: Tensor | None,
    audio_lens: Tensor | None,
    enable_thinking: bool | None = None,
) -> PromptBatch:
    """Tokenise dialogs, read the audio they name, and pad both into one batch on the model's device.

    Raises:
        DataError: Audio is given twice or lengths are missing, or the tags and audios differ in number.
        AudioError: An audio file cannot be read.
    """
    if isinstance(prompts, Tensor):
        _check_ids(model, prompts)
        input_ids = prompts.to(model.device)
        token_mask = leading_pad_mask(input_ids, model.text_pad_id)
        paths: list[str] = []
    else:
        ids, paths = tokenize_dialogs(model, prompts, enable_thinking)
        input_ids, token_mask = left_pad(ids, model.text_pad_id)
        input_ids, token_mask = input_ids.to(model.device), token_mask.to(model.device)
    if paths and audios is not None:
        raise DataError('Audio is given both as `audios` and in the turns of the prompts: give it once.')
    if paths:
        waveforms = [load_audio(path, model.sampling_rate) for path in paths]
        audios, audio_lens = pad_waveforms(waveforms)
    if audios is None:
        audios, audio_lens = torch.zeros(0, 0), torch.zeros(0, dtype=torch.long)
    if audio_lens is None:
        raise DataError('`audios` needs `audio_lens`, the number of samples of each row.')
    if not isinstance(audios, Tensor) or not isinstance(audio_lens, Tensor):
        raise DataError(
            f'Expected `audios` and `audio_lens` as tensors, got {type(audios).__name__} and '
            f'{type(audio_lens).__name__}.'
        )
    if audio_lens.shape != audios.shape[:1] or (
        len(audios) and not 1 <= int(audio_lens.min()) <= int(audio_lens.max()) <= audios.shape[1]
    ):
        raise DataError(
            f'`audio_lens` {audio_lens.tolist()} does not fit `audios` {list(audios.shape)}: expected one length for '
            'each row, from 1 to its number of samples.'
        )
    return PromptBatch(input_ids, token_mask, audios.to(model.device), audio_lens.to(model.device))


def _check_ids(model: 'SALM', ids: Tensor) -> None:
    if ids.dim() != 2:
        raise DataError(f'Expected token ids [B, T], got shape {list(ids.shape)}.')
    if ids.dtype not in (torch.int32, torch.int64):
        raise DataError(f'Expected token ids as integers, got {ids.dtype}.')
    vocab_size = model.llm.hf_config.vocab_size
    wrong = ids[((ids < 0) | (ids >= vocab_size)) & (ids != model.audio_locator_tag_id)]
    if wrong.numel():
        raise DataError(f'Expected token ids in 0..{vocab_size - 1}, got {int(wrong[0])}.')


def tokenize_dialogs(
    model: 'SALM', dialogs: Sequence[Sequence[Mapping[str, Any]]], enable_thinking: bool | None
) -> tuple[list[Tensor], list[str]]:
    """Context ids of each dialog, and the audio paths of all their turns, in order of their tags."""
    formatter = PromptFormatter.resolve(model.cfg.prompt_format)(model.tokenizer)
    ids: list[Tensor] = []
    paths: list[str] = []
    if not isinstance(dialogs, Sequence) or isinstance(dialogs, str) or not dialogs:
        raise DataError(f'Expected a list of dialogs, each a list of turns {{"role", "content"}}, got {dialogs!r}.')
    for dialog in dialogs:
        turns = []
        for turn in dialog:
            if not isinstance(turn, Mapping):
                raise DataError(f'Expected a turn {{"role": ..., "content": ...}}, got {turn!r}.')
            found = turn.get('audio', [])
            paths.extend(str(p) for p in ([found] if isinstance(found, (str, Path)) else found))
            turns.append(_escaped(turn, model.audio_locator_tag))
        ids.append(formatter.encode_dialog(turns, enable_thinking=enable_thinking)['context_ids'])
    return ids, paths


def _escaped(turn: Mapping[str, Any], tag: str) -> dict[str, Any]:
    """The turn without its audio, and with control tokens in its text, but for the audio tag, made plain text."""
    escaped = {k: v for k, v in turn.items() if k != 'audio'}
    if isinstance(escaped.get('content'), str):
        escaped['content'] = mark_plain(escaped['content'], keep=[tag])
    return escaped


def left_pad(rows: Sequence[Tensor], pad_id: int) -> tuple[Tensor, Tensor]:
    """Pad rows of ids on the left to `[B, T]`; also the mask, True = a token."""
    rows = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    return collate_left(rows, pad_id), collate_left([torch.ones_like(row, dtype=torch.bool) for row in rows], False)


def pad_waveforms(waveforms: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Zero-pad waveforms `[S_i]` on the right to `[N, S]`; also their lengths `[N]`."""
    lens = torch.tensor([len(w) for w in waveforms], dtype=torch.long)
    return torch.nn.utils.rnn.pad_sequence([w.float() for w in waveforms], batch_first=True), lens
