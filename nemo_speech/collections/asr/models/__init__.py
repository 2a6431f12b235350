"""ASR models under NeMo's names, resolved on first use."""

from importlib import import_module

_HOMES = {
    'ASRModel': 'asr_model',
    'EncDecCTCModel': 'ctc_models',
    'EncDecCTCModelBPE': 'ctc_models',
    'EncDecHybridRNNTCTCBPEModel': 'hybrid_models',
    'EncDecHybridRNNTCTCModel': 'hybrid_models',
    'EncDecRNNTBPEModel': 'rnnt_models',
    'EncDecRNNTModel': 'rnnt_models',
}

__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'{__name__}.{_HOMES[name]}'), name)


def __dir__() -> list[str]:
    return __all__
