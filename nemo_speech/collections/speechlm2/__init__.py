"""Speech-LLM models. Names are resolved when first used, so that importing this loads nothing heavy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_speech.collections.speechlm2.backbones import LLMBackbone, load_backbone
    from nemo_speech.collections.speechlm2.config import SALMConfig
    from nemo_speech.collections.speechlm2.data import DataModule, SALMDataset
    from nemo_speech.collections.speechlm2.experiment import SALMTrainConfig
    from nemo_speech.collections.speechlm2.models.salm import SALM

_HOMES = {
    'DataModule': 'nemo_speech.collections.speechlm2.data',
    'LLMBackbone': 'nemo_speech.collections.speechlm2.backbones',
    'SALM': 'nemo_speech.collections.speechlm2.models.salm',
    'SALMConfig': 'nemo_speech.collections.speechlm2.config',
    'SALMDataset': 'nemo_speech.collections.speechlm2.data',
    'SALMTrainConfig': 'nemo_speech.collections.speechlm2.experiment',
    'load_backbone': 'nemo_speech.collections.speechlm2.backbones',
}

__all__ = [
    'DataModule',
    'LLMBackbone',
    'SALM',
    'SALMConfig',
    'SALMDataset',
    'SALMTrainConfig',
    'load_backbone',
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
