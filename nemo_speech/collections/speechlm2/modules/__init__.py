"""Parts of speech-augmented language models, resolved on first use."""

from nemo_speech.utils.lazy import lazy_exports

_HOMES = {
    'AudioPerceptionModule': 'perception',
    'PerceptionConfig': 'perception',
    'PerceptionOutput': 'perception',
    'IdentityConnector': 'adapters',
    'FrameStackingConnector': 'adapters',
    'MultiLayerProjectionConnector': 'adapters',
    'QformerConnector': 'qformer',
    'HFSpeechEncoder': 'hf_encoders',
    'CTCGuidedAdapter': 'ctc_guided',
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
