"""Where an answer ends: at an end token, or where a decoder that found no end began to repeat itself."""

from collections.abc import Sequence

from torch import Tensor


def cut_at_end(token_ids: Tensor, end_ids: set[int]) -> list[list[int]]:
    """Rows of `[B, U]` up to, without, the first of `end_ids`."""
    rows = []
    for row in token_ids.tolist():
        end = next((i for i, token in enumerate(row) if token in end_ids), len(row))
        rows.append(row[:end])
    return rows


def cut_loop(token_ids: Sequence[int], min_repeats: int = 3) -> list[int]:
    """The tokens with a loop at their end reduced to one turn of it.

    A loop is a stretch that stands at least `min_repeats` times in a row and may break off within its last turn. Of
    several the one that covers most is taken, and of those the one with the shortest turn.

    Args:
        token_ids: An answer that was broken off at the limit of its length; one that ended by itself is no loop.
        min_repeats: Whole turns that make a loop.
    """
    ids = list(token_ids)
    longest, kept = 0, len(ids)
    for period in range(1, len(ids) // min_repeats + 1):
        run = period
        while run < len(ids) and ids[-1 - run] == ids[-1 - run + period]:
            run += 1
        if run >= min_repeats * period and run > longest:
            longest, kept = run, len(ids) - run + period
    return ids[:kept]
