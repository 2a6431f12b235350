"""What a `train_ds` or `validation_ds` block may say: NeMo's lhotse keys, typed, with their defaults.

Keys of NeMo that are not supported yet are named in `UNSUPPORTED_KEYS`, so that a NeMo user learns the difference from
an unsupported key and a misspelt one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_speech.core.errors import ConfigError

__all__ = ['LhotseDataLoadingConfig', 'UNSUPPORTED_KEYS', 'loading_config']

UNSUPPORTED_KEYS: dict[str, str] = {
    **dict.fromkeys(
        (
            'noise_path noise_snr noise_mix_prob perturb_speed truncate_duration truncate_offset_type '
            'cut_into_windows_duration cut_into_windows_hop keep_excessive_supervisions rir_enabled rir_path rir_prob '
            'pad_min_duration pad_direction lowpass_enabled lowpass_frequencies_interval lowpass_prob '
            'compression_enabled compression_prob compression_level_interval compression_codecs '
            'compression_codec_weights compression_enable_for_custom_fields clipping_enabled clipping_gain_db '
            'clipping_normalize clipping_oversampling clipping_prob_hard clipping_prob'
        ).split(),
        'waveform augmentation is not supported yet (in NeMo it does not reach conversations either)',
    ),
    **dict.fromkeys(
        (
            'concatenate_samples concatenate_gap_seconds concatenate_duration_factor concatenate_merge_supervisions '
            'db_norm'
        ).split(),
        'joining utterances is not supported yet',
    ),
    **dict.fromkeys(
        'multi_config sampler_fusion sampler_weights'.split(),
        'several samplers in one loader are not supported yet; mix sources with input_cfg weights instead',
    ),
    **dict.fromkeys(
        'max_open_streams slice_length reweight_temperature cut_text_into_windows_tokens metadata_only'.split(),
        'not supported yet',
    ),
    **dict.fromkeys(
        'tarred_random_access force_map_dataset force_iterable_dataset cuda_expandable_segments'.split(),
        'not needed: every source is read at random access, and batches are the same for any number of workers',
    ),
    **dict.fromkeys(
        (
            'is_tarred shuffle_n bucketing_strategy bucketing_batch_size bucketing_weights tarred_shard_strategy '
            'trim_silence parser normalize_transcripts use_start_end_token labels defer_setup return_sample_id '
            'shard_manifests is_concat concat_sampling_technique concat_sampling_temperature '
            'concat_sampling_probabilities concat_shuffle'
        ).split(),
        "of NeMo's loader without lhotse, which is not supported",
    ),
}


@dataclass(frozen=True)
class LhotseDataLoadingConfig:
    """One data loader: sources, sampling, filters, runtime. Durations are in seconds, lengths in LLM tokens."""

    # Sources: `input_cfg` (a list of items, or a path to YAML that holds one), or one of NeMo's shorthands.
    input_cfg: Any = None
    manifest_filepath: Any = None
    tarred_audio_filepaths: Any = None
    cuts_path: str | None = None
    shar_path: Any = None
    skip_missing_manifest_entries: bool = False
    text_field: str = 'text'
    lang_field: str = 'lang'
    force_finite: bool = False
    use_lhotse: bool = True

    # Conversations.
    prompt_format: str | None = None
    audio_locator_tag: str | None = None
    token_equivalent_duration: float | None = None
    pretokenize: bool = True

    # Audio.
    sample_rate: int = 16000
    channel_selector: int | str | None = None  # None or 'average' mixes channels down; an int picks one

    # Batch size.
    batch_size: int | None = None
    batch_duration: float | None = None
    quadratic_duration: float | None = None
    use_multimodal_sampling: bool = False
    batch_tokens: int | None = None
    quadratic_factor: float | None = None
    measure_total_length: bool = True
    strict_budget: bool = False  # ours: no batch over its budget nor short of it for no reason, as NeMo's may be

    # Bucketing.
    use_bucketing: bool = False
    num_buckets: int = 30
    bucket_duration_bins: Any = None  # [5.0, ...] or [[5.0, 40], ...]
    bucket_batch_size: list[int] | None = None
    bucket_buffer_size: int = 10000
    num_cuts_for_bins_estimate: int = 10000
    concurrent_bucketing: bool = False
    bucketing_2d_strict_mode: bool = True

    # Filters.
    min_duration: float | None = None
    max_duration: float | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    min_tps: float | None = None
    max_tps: Any = None  # a number, or one for each bucket
    min_tpt: float | None = None
    max_tpt: Any = None
    max_cer: float | None = None
    min_context_speaker_similarity: float | None = None
    keep: str = 'pass'

    # Order.
    shuffle: bool = False
    shuffle_buffer_size: int = 10000
    seed: int | str = 0
    shard_seed: int | str = 'trng'
    drop_last: bool = False

    # Runtime.
    num_workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool = False

    # Policies.
    on_bad_manifest_line: str = 'raise'  # or 'skip', counted
    require_text: bool = True  # False for inference on manifests without transcripts
    on_resume_mismatch: str = 'raise'  # or 'restart': begin the data anew when the checkpoint's does not fit

    def __post_init__(self):
        check_choice('on_bad_manifest_line', self.on_bad_manifest_line, ('raise', 'skip'))
        check_choice('on_resume_mismatch', self.on_resume_mismatch, ('raise', 'restart'))
        if isinstance(self.seed, str):
            check_choice('seed', self.seed, ('trng', 'randomized'))
        if isinstance(self.shard_seed, str):
            check_choice('shard_seed', self.shard_seed, ('trng', 'randomized'))
        if isinstance(self.channel_selector, str):
            check_choice('channel_selector', self.channel_selector, ('average',))
        if self.concurrent_bucketing:
            raise ConfigError(
                "concurrent_bucketing=true fills buckets from a thread, so batches would differ from run to run and "
                "could not be resumed. Remove the key: sampling already runs in the loader's workers."
            )
        if isinstance(self.channel_selector, int) and self.channel_selector < 0:
            raise ConfigError(f"channel_selector must be a channel from 0 on, but is {self.channel_selector}.")
        self._check_numbers()
        self._check_batch_size()
        self._check_bins()

    def _check_numbers(self):
        positive = (
            'batch_size batch_duration quadratic_duration batch_tokens quadratic_factor token_equivalent_duration '
            'sample_rate num_buckets bucket_buffer_size num_cuts_for_bins_estimate shuffle_buffer_size prefetch_factor'
        )
        for key in positive.split():
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigError(f"{key} must be positive, but is {value!r}.")
        if self.num_workers < 0:
            raise ConfigError(
                f"num_workers must be 0 (load in the training process) or more, but is {self.num_workers}."
            )
        for key in ('max_tps', 'max_tpt'):
            self._check_bound(key, getattr(self, key))
        for low, high in (('min_duration', 'max_duration'), ('min_tokens', 'max_tokens')):
            lower, upper = getattr(self, low), getattr(self, high)
            if lower is not None and upper is not None and lower > upper:
                raise ConfigError(f"{low}={lower} is above {high}={upper}: every example would be dropped.")

    def _check_bound(self, key: str, value: Any):
        if value is None or _is_number(value):
            return
        if not isinstance(value, (list, tuple)) or not all(map(_is_number, value)):
            raise ConfigError(f"{key} must be a number, or a list with one for each bucket, but is {value!r}.")
        if not self.is_2d:
            raise ConfigError(f"{key} is a list, one bound for each bucket, which needs 2-D bucket_duration_bins.")

    def _check_batch_size(self):
        if self.batch_tokens is not None and not self.use_multimodal_sampling:
            raise ConfigError("batch_tokens needs use_multimodal_sampling: true; use batch_duration for plain audio.")
        if self.batch_duration is not None and self.use_multimodal_sampling:
            raise ConfigError("batch_duration does not go with use_multimodal_sampling: set batch_tokens instead.")
        if self.use_multimodal_sampling and self.token_equivalent_duration is None:
            raise ConfigError(
                "use_multimodal_sampling needs token_equivalent_duration, the seconds of audio that become one LLM "
                "position (0.08 for FastConformer encoders)."
            )
        sizes = ('batch_size', 'batch_duration', 'batch_tokens', 'bucket_batch_size')
        if all(getattr(self, key) is None for key in sizes):
            raise ConfigError(f"Nothing says how large a batch is: set one of {', '.join(sizes)}.")

    def _check_bins(self):
        bins, sizes = self.bins, self.bucket_batch_size
        if bins is not None:
            _check_bin_shapes(bins)
        if bins is not None and bins != sorted(bins):
            raise ConfigError(f"bucket_duration_bins must ascend, but are {bins}.")
        if sizes is None:
            if self.is_2d:
                raise ConfigError("2-D bucket_duration_bins need bucket_batch_size, one for each bin.")
            return
        if any(size < 1 for size in sizes):
            raise ConfigError(f"bucket_batch_size must hold positive numbers, but is {sizes}.")
        if bins is None:
            raise ConfigError("bucket_batch_size needs bucket_duration_bins: the upper bounds of the buckets.")
        if len(bins) != len(sizes):
            raise ConfigError(
                f"bucket_batch_size has {len(sizes)} entries but bucket_duration_bins has {len(bins)}; give each "
                "bin its batch size."
            )

    @property
    def bins(self) -> list[float] | list[tuple[float, ...]] | None:
        """`bucket_duration_bins`; 2-D bins as tuples, which compare with `(input, output)` lengths."""
        if self.bucket_duration_bins is None:
            return None
        if not isinstance(self.bucket_duration_bins, Sequence) or isinstance(self.bucket_duration_bins, str):
            raise ConfigError(f"bucket_duration_bins must be a list, but is {self.bucket_duration_bins!r}.")
        if not self.bucket_duration_bins:
            raise ConfigError("bucket_duration_bins is empty; remove it, and the bins are estimated from the data.")
        return [tuple(b) if isinstance(b, (list, tuple)) else b for b in self.bucket_duration_bins]

    @property
    def is_2d(self) -> bool:
        """Whether buckets have an input and an output bound."""
        bins = self.bins
        return bins is not None and isinstance(bins[0], tuple)

    @property
    def is_bucketed(self) -> bool:
        """Bucketing is on when asked for, or when bins or per-bucket batch sizes are given."""
        return self.use_bucketing or self.bucket_duration_bins is not None or self.bucket_batch_size is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_bin_shapes(bins: list[Any]) -> None:
    flat = all(_is_number(b) and b > 0 for b in bins)
    pairs = all(isinstance(b, tuple) and len(b) == 2 and all(_is_number(x) and x > 0 for x in b) for b in bins)
    if not flat and not pairs:
        raise ConfigError(
            "bucket_duration_bins must be positive numbers, [5, 10], or pairs of them (input, output), "
            f"[[5, 20], [10, 40]], but are {bins}."
        )


def check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise a ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{key} must be {' or '.join(map(repr, choices))}, but is {value!r}.")


def loading_config(mapping: Mapping[str, Any], *, path: str = '') -> LhotseDataLoadingConfig:
    """Build the typed configuration of one loader.

    Args:
        mapping: The block as read from YAML.
        path: Where it stands, e.g. `data.train_ds`, for messages.

    Raises:
        ConfigError: A key is unknown (with the nearest valid one), not supported yet, or has a wrong value.
    """
    from nemo_speech.core.config import build_config

    for key in mapping:
        if key in UNSUPPORTED_KEYS:
            raise ConfigError(f"{path}.{key}".lstrip('.') + f": {UNSUPPORTED_KEYS[key]}. Remove the key.")
    try:
        return build_config(LhotseDataLoadingConfig, mapping, path=path)
    except ConfigError as error:
        if path and path not in str(error):
            raise ConfigError(f"{path}: {error}") from error
        raise
