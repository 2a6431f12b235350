"""`model_config.yaml` of NeMo's CTC, transducer and hybrid models as dataclasses."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from nemo_speech.collections.asr.decoding.timestamps import TimestampRules
from nemo_speech.core.model import ModelConfig


@dataclass(kw_only=True)
class DecodingConfig(TimestampRules):
    """The `decoding` section. Its beam and n-gram options are read, and refused only where they are asked for."""

    strategy: str = 'greedy_batch'
    model_type: str | None = None
    durations: list[int] = field(default_factory=list)
    compute_timestamps: bool | None = None
    ctc_timestamp_type: str = 'all'
    rnnt_timestamp_type: str = 'all'
    greedy: dict[str, Any] = field(default_factory=dict)
    beam: dict[str, Any] = field(default_factory=dict)
    wfst: dict[str, Any] = field(default_factory=dict)
    confidence_cfg: dict[str, Any] = field(default_factory=dict)
    preserve_alignments: bool | None = None
    compute_langs: bool = False
    compute_hypothesis_token_set: bool = False
    tdt_include_token_duration: bool | None = None
    big_blank_durations: list[int] = field(default_factory=list)
    strip_lang_tags: bool = False
    lang_tag_pattern: str | None = None
    fused_batch_size: int | None = None
    batch_dim_index: int = 0
    temperature: float = 1.0

    strategies: ClassVar[tuple[str, ...]] = ('greedy', 'greedy_batch')

    def __post_init__(self) -> None:
        if self.strategy not in self.strategies:
            raise ValueError(
                f'strategy: {self.strategy!r} is not supported yet; expected {" or ".join(self.strategies)}.'
            )
        if self.big_blank_durations:
            raise ValueError('big_blank_durations: multi-blank models are not supported.')
        if self.greedy.get('ngram_lm_model') or (self.greedy.get('boosting_tree') or {}).get('model_path'):
            raise ValueError('greedy: n-gram and phrase fusion are not supported yet; leave their models null.')

    @property
    def max_symbols(self) -> int | None:
        """Most labels of a transducer at one frame."""
        return self.greedy.get('max_symbols', self.greedy.get('max_symbols_per_step', 10))


@dataclass(kw_only=True)
class AuxCTCConfig:
    """The second head of a hybrid model."""

    decoder: dict[str, Any]
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    ctc_loss_weight: float = 0.3
    use_cer: bool = False
    ctc_reduction: str = 'mean_batch'


@dataclass(kw_only=True)
class ASRConfig(ModelConfig):
    """The configuration of a model; sections that build parts are `{_target_: ..., key: value}`."""

    preprocessor: dict[str, Any]
    encoder: dict[str, Any]
    decoder: dict[str, Any]
    joint: dict[str, Any] | None = None
    spec_augment: dict[str, Any] | None = None
    tokenizer: dict[str, Any] | None = None
    """None: a model of characters, whose texts are `labels`."""
    labels: list[str] | None = None
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    aux_ctc: AuxCTCConfig | None = None
    loss: dict[str, Any] | None = None
    sample_rate: int = 16000
    model_defaults: dict[str, Any] | None = None
    interctc: dict[str, Any] | None = None
    ctc_reduction: str | None = None
    rnnt_reduction: str | None = None
    compute_eval_loss: bool = True
    log_prediction: bool = True
    use_cer: bool = False
    skip_nan_grad: bool = False
    variational_noise: dict[str, Any] | None = None
    optim: dict[str, Any] | None = None
    train_ds: dict[str, Any] | None = None
    validation_ds: dict[str, Any] | None = None
    test_ds: dict[str, Any] | None = None
    target: str | None = None
    nemo_version: str | None = None


@dataclass(kw_only=True)
class BeamConfig:
    """The `beam` section of an attention decoder.

    Attributes:
        beam_size: Hypotheses; 1 is greedy decoding.
        len_pen: See `BeamSearch`.
        max_generation_delta: Most tokens of prompt and answer beyond the encoder's frames; -1: as many as the decoder
            has positions.
    """

    beam_size: int = 1
    search_type: str = 'default'
    len_pen: float = 0.0
    max_generation_delta: int = -1
    return_best_hypothesis: bool = True
    preserve_alignments: bool = False
    ngram_lm_model: str | None = None
    ngram_lm_alpha: float = 0.0
    boosting_tree: dict[str, Any] | None = None
    boosting_tree_alpha: float = 0.0

    def __post_init__(self) -> None:
        if self.beam_size < 1:
            raise ValueError(f'beam_size: expected 1 or more, got {self.beam_size}.')
        if self.ngram_lm_model or (self.boosting_tree or {}).get('model_path'):
            raise ValueError('n-gram and phrase fusion are not supported yet; leave their models null.')


@dataclass(kw_only=True)
class MultiTaskDecodingConfig(DecodingConfig):
    """The `decoding` section of an attention encoder-decoder model."""

    strategies: ClassVar[tuple[str, ...]] = ('greedy', 'greedy_batch', 'beam')
    strategy: str = 'beam'
    beam: BeamConfig = field(default_factory=BeamConfig)  # type: ignore[assignment]
    return_best_hypothesis: bool = True
    return_xattn_scores: bool = False


@dataclass(kw_only=True)
class MultiTaskConfig(ASRConfig):
    """The configuration of an attention encoder-decoder model (Canary)."""

    decoder: dict[str, Any] = field(default_factory=dict)
    """Not of these models."""
    prompt_format: str
    prompt_defaults: list[dict[str, Any]] = field(default_factory=list)
    """Turns `{role, slots}`; those of `user` are what a request leaves out."""
    transf_encoder: dict[str, Any] | None = None
    transf_decoder: dict[str, Any]
    head: dict[str, Any]
    decoding: MultiTaskDecodingConfig = field(default_factory=MultiTaskDecodingConfig)  # type: ignore[assignment]
    label_smoothing: float = 0.0
    use_loss_mask_for_prompt: bool = False
    multitask_metrics_cfg: dict[str, Any] | None = None
    restore_timestamps_model: bool = True


@dataclass(kw_only=True)
class TokenizerChange:
    """Which tokenizer fine-tuning uses.

    Attributes:
        update_tokenizer: Take the one of `dir` instead of the model's own; the heads then start anew.
    """

    update_tokenizer: bool = False
    dir: str | None = None
    type: str = 'bpe'


@dataclass(kw_only=True)
class FinetuneModelConfig:
    """The `model` section of a fine-tuning run; all else is the model's own."""

    train_ds: dict[str, Any]
    validation_ds: dict[str, Any] | None = None
    tokenizer: TokenizerChange = field(default_factory=TokenizerChange)
    spec_augment: dict[str, Any] | None = None
    optim: dict[str, Any]
    freeze_params: list[str] = field(default_factory=list)
    decoding: DecodingConfig | None = None
