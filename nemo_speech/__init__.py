"""Speech-LLM toolkit: ASR/TTS encoders feed SALM, whose LLM backbone is Megatron-Core.

Importing this package loads no torch; names are resolved where they are used.
"""

__version__ = "0.1.0"
