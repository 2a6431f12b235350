"""What a SALM is configured by: the `model` keys of NeMo's `salm.yaml`, typed, and ours marked as such."""

from dataclasses import dataclass, field
from typing import Any, Literal

from nemo_speech.collections.speechlm2.modules.perception import PerceptionConfig
from nemo_speech.core.model import ModelConfig

TorchDtype = Literal['float32', 'bfloat16', 'float16']


@dataclass
class CTCTrainingConfig:
    """How the CTC head of a `CTCGuidedAdapter` is trained beside the LLM (ours; no effect on other adapters)."""

    weight: float = 0.3
    """Factor of the CTC loss in the total loss once the LLM is trained too."""
    copy_rows: int = 0
    """Rows without audio added to each batch, of shuffled words heard as the adapter's bank makes them up; needs the
    adapter's `bank_size`."""
    warmup_steps: int = 0
    """Optimizer steps at the start in which the CTC loss is the whole loss and the LLM is not run."""


@dataclass
class ValidationConfig:
    """What validation does beside teacher-forced loss and accuracy (ours)."""

    decode: bool = True
    """Generate transcripts and score them (WER, CER, BLEU); False: loss and accuracy only, as NeMo does."""
    max_new_tokens: int = 128
    normalizer: Literal['none', 'basic', 'english'] = 'basic'
    num_logged_samples: int = 4
    """Reference/transcript pairs written to the log of each set."""


@dataclass(kw_only=True)
class SALMConfig(ModelConfig):
    """A SALM: which encoder, which LLM, what joins them, and what of it is trained."""

    pretrained_llm: str
    """Hugging Face directory, hub id, or `.gguf` file."""
    perception: PerceptionConfig
    prompt_format: str
    pretrained_asr: str | None = None
    """`.nemo` archive (path or hub id) that brings preprocessor and encoder; None: `perception.encoder` says what."""
    pretrained_weights: bool = True
    """False: build the architecture only; the weights come from a checkpoint."""
    audio_locator_tag: str = '<|audioplaceholder|>'
    lora: dict[str, Any] | None = None
    """Keyword arguments of `peft.LoraConfig`."""
    tokenizer_path: str | None = None
    trust_remote_code: bool = False
    torch_dtype: TorchDtype | None = None
    """Dtype of the weights; None: torch's default, which the trainer's `precision` sets."""
    encoder_chunk_size_seconds: float | None = None
    init_from_checkpoint: str | None = None
    """SALM directory, or `.ckpt`, whose weights replace those of `pretrained_*`."""
    backend: Literal['megatron', 'hf'] = 'megatron'
    """Ours: which implementation of the LLM runs."""
    save_frozen_weights: bool = False
    """Ours: keep frozen pretrained weights in every training checkpoint too, instead of once in the sources."""
    transcribe_prompt: str = 'Transcribe the following:'
    """Ours: the user's words before the audio in `transcribe`; may hold `{language}`."""
    ctc: CTCTrainingConfig = field(default_factory=CTCTrainingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    model_type: str | None = None
    """Written by `save_pretrained` for those who look for it; not read."""
    architectures: list[str] | None = None

    def __post_init__(self):
        if not self.audio_locator_tag.strip():
            raise ValueError("audio_locator_tag is empty; name the token for audio, such as '<|audioplaceholder|>'.")
