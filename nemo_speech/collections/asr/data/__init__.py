"""Data of ASR models: the dataset that collates utterances."""

from nemo_speech.utils.lazy import lazy_exports

_HOMES = {'LhotseSpeechToTextBpeDataset': 'dataset', 'PromptedAudioToTextLhotseDataset': 'dataset'}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
