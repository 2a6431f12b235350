"""Put audio frames in place of their tags in a batch of token ids.

Whole batches at once: every token is given a width (1, or the number of frames of its audio), a running sum of widths
gives each its place, and two scatters fill the rows. Padding is known from a mask and never from a token id, so a
tokenizer whose pad is its end-of-text loses no label.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_speech.core.errors import DataError

IGNORE_INDEX = -100


@dataclass
class SplicedBatch:
    """A batch as the LLM sees it."""

    input_embeds: Tensor  # [B, T, H]
    attention_mask: Tensor  # [B, T] bool, True = valid
    target_ids: Tensor | None  # [B, T] int64, the token AT each position, IGNORE_INDEX where it carries no loss


@dataclass
class NextTokenBatch:
    """A batch to train on: at each position the token that comes NEXT."""

    input_embeds: Tensor  # [B, T, H]
    attention_mask: Tensor  # [B, T] bool, True = the next token is valid
    target_ids: Tensor  # [B, T] int64, IGNORE_INDEX where there is no loss


def leading_pad_mask(input_ids: Tensor, pad_id: int) -> Tensor:
    """Valid positions `[B, T]` of left-padded ids: only the run of `pad_id` at the start of a row is padding."""
    return (input_ids != pad_id).cumsum(dim=1) > 0


def splice_audio(
    input_ids: Tensor,
    token_mask: Tensor,
    text_embeds: Tensor,
    audio_embeds: Tensor,
    audio_lens: Tensor,
    placeholder_id: int,
    target_ids: Tensor | None = None,
    padding_side: str = 'right',
) -> SplicedBatch:
    """Replace the n-th placeholder of the batch (row by row) with the n-th audio's frames.

    Args:
        input_ids: `[B, T]` int64.
        token_mask: `[B, T]` bool, True where `input_ids` holds a token and not padding, on whichever side.
        text_embeds: `[B, T, H]`; its values at placeholders and padding are not used.
        audio_embeds: `[N, F, H]`, N audios in the order of their tags.
        audio_lens: `[N]` int64, valid frames of each.
        placeholder_id: The audio tag's token id.
        target_ids: `[B, T]` int64 with IGNORE_INDEX where there is no loss; audio frames get IGNORE_INDEX.
        padding_side: Where the result is padded: `right` for training, `left` for generation.

    Raises:
        DataError: The number of placeholders is not N.
    """
    is_audio = (input_ids == placeholder_id) & token_mask
    rows, columns = is_audio.nonzero(as_tuple=True)
    if rows.numel() != audio_embeds.shape[0]:
        raise DataError(
            f'{rows.numel()} audio tags (id {placeholder_id}) in the prompts but {audio_embeds.shape[0]} audios; '
            'give every tag one audio, and keep the tag out of transcripts and other text.'
        )
    widths = token_mask.long()
    widths[rows, columns] = audio_lens.to(widths)
    ends = widths.cumsum(dim=1)
    starts = ends - widths
    lens = ends[:, -1]
    batch_size, max_len = input_ids.shape[0], int(lens.max())
    if padding_side == 'left':
        starts = starts + (max_len - lens)[:, None]

    embeds = text_embeds.new_zeros(batch_size, max_len, text_embeds.shape[-1])
    is_text = token_mask & ~is_audio
    text_rows, text_columns = is_text.nonzero(as_tuple=True)
    text_places = starts[text_rows, text_columns]
    embeds = embeds.index_put((text_rows, text_places), text_embeds[text_rows, text_columns])
    if rows.numel():
        frames = torch.arange(audio_embeds.shape[1], device=audio_embeds.device)
        valid = frames[None, :] < audio_lens[:, None]  # [N, F]
        places = (starts[rows, columns][:, None] + frames)[valid]
        frame_rows = rows[:, None].expand_as(valid)[valid]
        embeds = embeds.index_put((frame_rows, places), audio_embeds[valid].to(embeds.dtype))

    steps = torch.arange(max_len, device=lens.device)
    mask = steps[None, :] < lens[:, None] if padding_side == 'right' else steps[None, :] >= (max_len - lens)[:, None]
    targets = None
    if target_ids is not None:
        targets = torch.full((batch_size, max_len), IGNORE_INDEX, dtype=torch.long, device=input_ids.device)
        targets[text_rows, text_places] = target_ids[text_rows, text_columns]
    return SplicedBatch(embeds, mask, targets)


def shift_for_next_token(batch: SplicedBatch) -> NextTokenBatch:
    """Align inputs of a right-padded batch with what they predict: position t gets the token at t + 1 as target.

    A row's last token predicts nothing and becomes padding.
    """
    assert batch.target_ids is not None
    return NextTokenBatch(batch.input_embeds[:, :-1], batch.attention_mask[:, 1:], batch.target_ids[:, 1:])
