"""Models that hear and answer: `SALM`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_speech.collections.speechlm2.models.salm import SALM

__all__ = ['SALM']


def __getattr__(name: str) -> Any:
    if name != 'SALM':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from nemo_speech.collections.speechlm2.models.salm import SALM

    return SALM
