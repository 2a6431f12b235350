"""Parts of ASR models, resolved on first use."""

from importlib import import_module

_HOMES = {
    'AudioToMelSpectrogramPreprocessor': 'mel_preprocessor',
    'ConformerEncoder': 'conformer_encoder',
    'ConvASRDecoder': 'conv_asr_decoder',
    'RNNTDecoder': 'rnnt',
    'RNNTJoint': 'rnnt',
    'SpectrogramAugmentation': 'spectrogram_augmentation',
}

__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'{__name__}.{_HOMES[name]}'), name)


def __dir__() -> list[str]:
    return __all__
