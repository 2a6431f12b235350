"""Did-you-mean: the nearest valid name to a wrong one."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, options: Iterable[str], *, shown: int = 12) -> str:
    """A sentence for the end of an error message: the nearest option, or else all of them (the first `shown`).

    Returns:
        `"Did you mean 'x'?"`, `"Valid here: a, b."` or `"Nothing is valid here."`.
    """
    names = sorted(set(options))
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"Did you mean '{near[0]}'?"
    if not names:
        return 'Nothing is valid here.'
    rest = f' and {len(names) - shown} more' if len(names) > shown else ''
    return f"Valid here: {', '.join(names[:shown])}{rest}."
