"""Parts of ASR models, resolved on first use."""

from nemo_speech.utils.lazy import lazy_exports

_HOMES = {
    'AudioToMelSpectrogramPreprocessor': 'mel_preprocessor',
    'ConformerEncoder': 'conformer_encoder',
    'ConvASRDecoder': 'conv_asr_decoder',
    'RNNTDecoder': 'rnnt',
    'RNNTJoint': 'rnnt',
    'SpectrogramAugmentation': 'spectrogram_augmentation',
    'TokenClassifier': 'transformer',
    'TransformerDecoderNM': 'transformer',
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
