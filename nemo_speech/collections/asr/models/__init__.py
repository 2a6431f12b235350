"""ASR models under NeMo's names, resolved on first use."""

from nemo_speech.utils.lazy import lazy_exports

_HOMES = {
    'ASRModel': 'asr_model',
    'EncDecCTCModel': 'ctc_models',
    'EncDecCTCModelBPE': 'ctc_models',
    'EncDecHybridRNNTCTCBPEModel': 'hybrid_models',
    'EncDecHybridRNNTCTCModel': 'hybrid_models',
    'EncDecMultiTaskModel': 'aed_models',
    'EncDecRNNTBPEModel': 'rnnt_models',
    'EncDecRNNTModel': 'rnnt_models',
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
