"""`model_config.yaml` of NeMo's CTC, transducer and hybrid models as dataclasses."""

from dataclasses import dataclass, field
from typing import Any

from nemo_speech.collections.asr.decoding.timestamps import TimestampRules
from nemo_speech.core.model import ModelConfig

_GREEDY = ('greedy', 'greedy_batch')


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

    def __post_init__(self) -> None:
        if self.strategy not in _GREEDY:
            raise ValueError(f'strategy: {self.strategy!r} is not supported yet; expected {" or ".join(_GREEDY)}.')
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
