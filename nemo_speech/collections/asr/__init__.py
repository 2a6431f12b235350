"""Automatic speech recognition; `import nemo_speech.collections.asr as nemo_asr` is the drop-in for NeMo's."""

from nemo_speech.collections.asr import models

__all__ = ['models']
