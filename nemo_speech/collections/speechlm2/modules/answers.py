"""Other answers for the rows of a training batch.

A small LLM learns in tens of steps to correct a spelling unit by unit, and not in hundreds to turn it into its usual
longer tokens. So where a `CTCGuidedAdapter` spells what it hears, the answers are spelt in the same units
(`adapter.spell`); decoding them gives ordinary text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nemo_speech.core.errors import DataError


def rewrite_answers(
    batch: Mapping[str, Any],
    rows: Sequence[int],
    old_answers: Sequence[Sequence[int]],
    new_answers: Sequence[Sequence[int]],
    pad_id: int,
) -> dict[str, Tensor]:
    """Rows of a `SALMDataset` batch with the tokens of their answers exchanged.

    Args:
        batch: Has `input_ids [B, T]`, and `attention_mask` and `loss_mask` `[B, T]` bool.
        rows: Row of `batch` that each new row is made from; a row may be taken more than once, and for other texts.
        old_answers: Token ids of the answer in each of these rows, as the tokenizer writes it alone. What the prompt
            format puts around it (a role header, an end of turn) stays.
        new_answers: Token ids to put in its place; each carries loss.
        pad_id: Fills the left.

    Returns:
        New `input_ids`, `attention_mask` and `loss_mask`, padded on the left.

    Raises:
        DataError: An answer does not stand in the part of its row that carries loss.
    """
    ids, masks = [], []
    for row, old, new in zip(rows, old_answers, new_answers, strict=True):
        valid = batch['attention_mask'][row]
        tokens, mask = batch['input_ids'][row][valid].tolist(), batch['loss_mask'][row][valid].tolist()
        start = _find_last(tokens, mask, list(old))
        if start is None:
            raise DataError(
                f'row {row} of the batch: its answer of {len(old)} tokens is not found among the tokens that carry '
                'loss, so it cannot be spelt in CTC units: one answer a conversation is needed, without markup'
            )
        end = start + len(old)
        ids.append(torch.tensor([*tokens[:start], *new, *tokens[end:]]))
        masks.append(torch.tensor([*mask[:start], *[True] * len(new), *mask[end:]]))
    device = batch['input_ids'].device
    return {
        'input_ids': _pad_left(ids, pad_id).to(device),
        'attention_mask': _pad_left([torch.ones_like(mask) for mask in masks], False).to(device),
        'loss_mask': _pad_left(masks, False).to(device),
    }


def _find_last(tokens: list[int], mask: list[bool], answer: list[int]) -> int | None:
    size = len(answer)
    if not size:
        return None
    for start in range(len(tokens) - size, -1, -1):
        if tokens[start : start + size] == answer and all(mask[start : start + size]):
            return start
    return None


def _pad_left(rows: Sequence[Tensor], fill: int | bool) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=fill, padding_side='left')
