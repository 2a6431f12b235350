"""Data of speech LLMs: the module Lightning loads from, and the dataset that collates."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_speech.collections.common.data.datamodule import DataConfig, DataModule
    from nemo_speech.collections.common.data.loading_config import LhotseDataLoadingConfig
    from nemo_speech.collections.speechlm2.data.dataset import SALMDataset

_HOMES = {
    'DataConfig': 'nemo_speech.collections.common.data.datamodule',
    'DataModule': 'nemo_speech.collections.common.data.datamodule',
    'LhotseDataLoadingConfig': 'nemo_speech.collections.common.data.loading_config',
    'SALMDataset': 'nemo_speech.collections.speechlm2.data.dataset',
}

__all__ = ['DataConfig', 'DataModule', 'LhotseDataLoadingConfig', 'SALMDataset']


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
