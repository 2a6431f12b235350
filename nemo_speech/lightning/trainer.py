"""`cfg.trainer` as a dataclass, and the arguments of Lightning's Trainer made from it."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from nemo_speech.core.errors import ConfigError
from nemo_speech.core.instantiate import instantiate
from nemo_speech.core.schema import build_config

_HALF = {
    'bf16-true': 'bf16-true',
    '16-true': '16-true',
    'fp16-true': '16-true',
    'bf16': 'bf16-mixed',
    'fp16': '16-mixed',
}
_PRECISIONS = (
    *(None, 64, 32, 16, '64', '32', '16', '64-true', '32-true', '16-true', 'bf16-true', '16-mixed', 'bf16-mixed'),
    *('transformer-engine', 'transformer-engine-float16'),
)


@dataclass(kw_only=True)
class TrainerConfig:
    """Arguments of `lightning.pytorch.Trainer`, with its meanings; None leaves Lightning's default.

    Attributes:
        strategy: A name, or `{_target_: lightning.pytorch.strategies.DDPStrategy, ...}`.
        logger: `exp_manager` adds the loggers, so False; likewise `enable_checkpointing`.
        callbacks: Each `{_target_: ..., ...}`.
        precision: `32`, `bf16-mixed`, `bf16-true` (audio stays float32) and Lightning's others.
    """

    accelerator: str = 'auto'
    strategy: str | dict[str, Any] = 'auto'
    devices: int | str | list[int] = 'auto'
    num_nodes: int = 1
    precision: int | str | None = None
    logger: bool = False
    callbacks: list[dict[str, Any]] | None = None
    fast_dev_run: bool | int = False
    max_epochs: int | None = None
    min_epochs: int | None = None
    max_steps: int = -1
    min_steps: int | None = None
    max_time: str | dict[str, int] | None = None
    limit_train_batches: int | float | None = None
    limit_val_batches: int | float | None = None
    limit_test_batches: int | float | None = None
    limit_predict_batches: int | float | None = None
    overfit_batches: int | float = 0.0
    val_check_interval: int | float | None = None
    check_val_every_n_epoch: int | None = 1
    num_sanity_val_steps: int | None = None
    log_every_n_steps: int | None = None
    enable_checkpointing: bool = False
    enable_progress_bar: bool = True
    enable_model_summary: bool | None = None
    accumulate_grad_batches: int = 1
    gradient_clip_val: int | float | None = None
    gradient_clip_algorithm: Literal['norm', 'value'] | None = None
    deterministic: bool | Literal['warn'] | None = None
    benchmark: bool | None = None
    inference_mode: bool = True
    use_distributed_sampler: bool = False
    profiler: str | dict[str, Any] | None = None
    detect_anomaly: bool = False
    barebones: bool = False
    sync_batchnorm: bool = False
    reload_dataloaders_every_n_epochs: int = 0
    default_root_dir: str | None = None
    enable_autolog_hparams: bool = True

    def __post_init__(self):
        for key, least in (('accumulate_grad_batches', 1), ('gradient_clip_val', 0), ('log_every_n_steps', 0)):
            value = getattr(self, key)
            if value is not None and value < least:
                raise ValueError(f'{key}: expected {least} or more, got {value}.')


def build_trainer(cfg: 'TrainerConfig | dict[str, Any]', **overrides: Any) -> Any:
    """Lightning's Trainer from the config; `overrides` are Trainer arguments. Raises as `resolve_trainer_cfg`."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    kwargs = {**resolve_trainer_cfg(cfg), **overrides}
    try:
        return Trainer(**kwargs)
    except (MisconfigurationException, ValueError) as error:  # Lightning's texts name the argument
        raise ConfigError(f'trainer: {error}') from error


def resolve_trainer_cfg(cfg: TrainerConfig | dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for `lightning.pytorch.Trainer`.

    `_target_`s are built; half precision keeps audio in float32; the progress bar shows the whole run; checkpoints are
    read as plain data.

    Raises:
        ConfigError: A key or value is wrong, or the accelerator is not there.
    """
    from nemo_speech.lightning.checkpoint_io import SafeCheckpointIO

    cfg = build_config(TrainerConfig, cfg, path='trainer')
    kwargs = {f.name: getattr(cfg, f.name) for f in fields(cfg)}
    kwargs['accelerator'] = _accelerator(cfg)
    kwargs['devices'] = _devices(cfg, kwargs['accelerator'])
    kwargs['plugins'] = [SafeCheckpointIO()]
    _set_precision(kwargs)
    for key in ('strategy', 'profiler'):
        if isinstance(kwargs[key], dict):
            kwargs[key] = instantiate(kwargs[key], path=f'trainer.{key}')
    kwargs['callbacks'] = _callbacks(cfg)
    return kwargs


def _accelerator(cfg: TrainerConfig) -> str:
    import torch

    if cfg.accelerator in ('gpu', 'cuda') and not torch.cuda.is_available():
        if cfg.accelerator == 'gpu' and torch.backends.mps.is_available():
            return 'mps'
        raise ConfigError(
            f"trainer.accelerator: '{cfg.accelerator}' was asked for, and no GPU is usable here. "
            'Set trainer.accelerator=cpu (or auto, which takes what is there).'
        )
    if cfg.accelerator == 'auto':
        return 'cuda' if torch.cuda.is_available() else 'cpu'
    return cfg.accelerator


def _devices(cfg: TrainerConfig, accelerator: str) -> int | str | list[int]:
    """On a CPU "all devices" means one process; its cores are shared by threads."""
    if accelerator == 'cpu' and cfg.devices in (-1, '-1', 'auto'):
        return 1
    return cfg.devices


def _set_precision(kwargs: dict[str, Any]) -> None:
    from lightning.pytorch.plugins.precision import Precision

    precision = kwargs['precision']
    if isinstance(precision, str):
        precision = _HALF.get(precision, precision)
    if precision not in _PRECISIONS:
        known = ', '.join(str(name) for name in _PRECISIONS if isinstance(name, str))
        raise ConfigError(f'trainer.precision: {precision!r} is not known; known are {known}.')
    kwargs['precision'] = precision
    if precision in ('bf16-true', '16-true'):
        from nemo_speech.lightning.precision import HalfPrecisionForAudio

        half: Precision = HalfPrecisionForAudio(precision)
        kwargs['plugins'].append(half)
        kwargs['precision'] = None  # Lightning takes the plugin or the name, not both


def _callbacks(cfg: TrainerConfig) -> list[Any]:
    from lightning.pytorch.callbacks import Callback

    callbacks = [
        instantiate(callback, path=f'trainer.callbacks[{i}]', expected_type=Callback)
        for i, callback in enumerate(cfg.callbacks or [])
    ]
    if cfg.enable_progress_bar and not cfg.barebones:
        from nemo_speech.lightning.progress import TrainingProgressBar

        callbacks.append(TrainingProgressBar())
    return callbacks
