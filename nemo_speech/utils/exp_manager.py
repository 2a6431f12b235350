"""`exp_manager`: where a run writes, what it logs, what it checkpoints, and how it resumes. Keys are NeMo's.

This module imports nothing heavy; Lightning is loaded when a run starts.
"""

import os
import shutil
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from nemo_speech.utils.errors import CheckpointError, ConfigError, MissingDependencyError
from nemo_speech.utils.logging import get_logger

logger = get_logger(__name__)
VERSION_VARIABLE = 'NEMO_EXPM_VERSION'  # processes that a strategy starts take the version from their parent here


@dataclass(kw_only=True)
class CheckpointParams:
    """Arguments of the checkpoint callback.

    Attributes:
        dirpath: Default `<log dir>/checkpoints`.
        filename: Default `{<monitor>:.4f}-{step}` after `prefix`; the last one has `-last` appended.
        always_save_nemo: Beside each best checkpoint, write the model by `save_to`.
        save_nemo_on_train_end: Write `<prefix or name>.nemo` when training ends.
        save_best_model: Load the best checkpoint before that.
    """

    dirpath: str | None = None
    filename: str | None = None
    monitor: str | None = 'val_loss'
    mode: Literal['min', 'max'] = 'min'
    verbose: bool = False
    save_last: bool = True
    save_top_k: int = 3
    save_weights_only: bool = False
    auto_insert_metric_name: bool = True
    every_n_epochs: int | None = None
    every_n_train_steps: int | None = None
    train_time_interval: str | None = None  # DD:HH:MM:SS
    save_on_train_epoch_end: bool | None = None
    save_on_exception: bool = False
    prefix: str | None = None
    postfix: str = '.nemo'
    always_save_nemo: bool = False
    save_nemo_on_train_end: bool = False
    save_best_model: bool = False


@dataclass(kw_only=True)
class EarlyStoppingParams:
    """Arguments of Lightning's EarlyStopping."""

    monitor: str = 'val_loss'
    mode: Literal['min', 'max'] = 'min'
    min_delta: float = 0.001
    patience: int = 10
    verbose: bool = True
    strict: bool = True
    check_finite: bool = True
    stopping_threshold: float | None = None
    divergence_threshold: float | None = None
    check_on_train_epoch_end: bool | None = None
    log_rank_zero_only: bool = False


@dataclass(kw_only=True)
class ExpManagerConfig:
    """What a run writes and from where it resumes.

    Attributes:
        explicit_log_dir: The log directory itself; else it is `exp_dir/name/version`.
        exp_dir: Default `nemo_experiments`.
        version: Default the time, or `version_<n>` without `use_datetime_version`; none with `resume_if_exists`.
        resume_if_exists: Continue from the newest `*last.ckpt` of the log directory.
        resume_past_end: Let `*end.ckpt` count as well.
        resume_ignore_no_checkpoint: Start afresh, instead of failing, when there is none.
        resume_from_checkpoint: Continue from this file.
        max_time_per_run: `DD:HH:MM:SS`; then a last checkpoint is written and the run stops. Not summed over resumed
            runs.
        files_to_copy: Copied into the log directory.
        seconds_to_sleep: Other ranks wait this long for rank 0 to make the directory.
    """

    explicit_log_dir: str | None = None
    exp_dir: str | None = None
    name: str | None = None
    version: str | None = None
    use_datetime_version: bool = True
    resume_if_exists: bool = False
    resume_past_end: bool = False
    resume_ignore_no_checkpoint: bool = False
    resume_from_checkpoint: str | None = None
    create_tensorboard_logger: bool = True
    summary_writer_kwargs: dict[str, Any] | None = None
    create_wandb_logger: bool = False
    wandb_logger_kwargs: dict[str, Any] | None = None
    create_csv_logger: bool = False
    create_checkpoint_callback: bool = True
    checkpoint_callback_params: CheckpointParams = field(default_factory=CheckpointParams)
    create_early_stopping_callback: bool = False
    early_stopping_callback_params: EarlyStoppingParams = field(default_factory=EarlyStoppingParams)
    log_step_timing: bool = True
    max_time_per_run: str | None = None
    files_to_copy: list[str] | None = None
    seconds_to_sleep: float = 0.0

    def __post_init__(self):
        if self.max_time_per_run is not None:
            parse_duration(self.max_time_per_run)


def exp_manager(trainer: Any, cfg: ExpManagerConfig | None = None, config: Mapping[str, Any] | Any = None) -> Path:
    """Prepare a run: log directory, loggers, checkpoints, resume, time limit, records of what was run.

    Args:
        trainer: Made with `logger=False, enable_checkpointing=False`; loggers and callbacks are added to it.
        cfg: None means the defaults.
        config: The whole configuration (mapping or dataclass), saved as `config.yaml`.

    Returns:
        The log directory.

    Raises:
        ConfigError: The trainer already has a logger or checkpoint callback that `cfg` wants to add, the log directory
            cannot be made, there is nothing to resume from, or a file to copy is missing.
        CheckpointError: The checkpoint to resume from is damaged.
        MissingDependencyError: A logger's package is missing.
    """
    from nemo_speech.utils.run_callbacks import FinalSummary, MaxTimePerRun, RunCheckpoint, StepTimer
    from nemo_speech.utils.run_records import save_records

    cfg = cfg or ExpManagerConfig()
    log_dir = find_log_dir(cfg)
    if trainer.global_rank != 0 and cfg.seconds_to_sleep > 0:
        time.sleep(cfg.seconds_to_sleep)
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f'exp_manager: {log_dir} cannot be made ({error}); give explicit_log_dir another place.'
        ) from error
    logger.info('Results go to %s', log_dir)
    checkpoint_dir = Path(cfg.checkpoint_callback_params.dirpath or log_dir / 'checkpoints')
    resume_from = find_resume_checkpoint(cfg, checkpoint_dir)
    if resume_from is not None:
        logger.info('Resuming from %s', resume_from)
        trainer.ckpt_path = str(resume_from)
    if trainer.is_global_zero:
        save_records(log_dir, config)
        _copy_files(cfg, log_dir)
    _add_loggers(trainer, cfg, log_dir)
    if cfg.log_step_timing:
        trainer.callbacks.append(StepTimer())
    if cfg.max_time_per_run is not None:
        trainer.callbacks.append(MaxTimePerRun(parse_duration(cfg.max_time_per_run)))
    if cfg.create_early_stopping_callback:
        trainer.callbacks.append(_early_stopping(cfg.early_stopping_callback_params))
    trainer.callbacks.append(FinalSummary(log_dir))
    if cfg.create_checkpoint_callback:
        if trainer.checkpoint_callbacks:
            raise ConfigError('the trainer has a checkpoint callback already; set trainer.enable_checkpointing=False.')
        trainer.callbacks.append(RunCheckpoint(cfg.checkpoint_callback_params, checkpoint_dir, cfg.name or 'default'))
    return log_dir


def find_log_dir(cfg: ExpManagerConfig) -> Path:
    """The log directory of the config; sets the version for processes that this one starts."""
    if cfg.explicit_log_dir:
        return Path(cfg.explicit_log_dir)
    root = Path(cfg.exp_dir or 'nemo_experiments') / (cfg.name or 'default')
    version = cfg.version or os.environ.get(VERSION_VARIABLE)
    if version is None:
        version = '' if cfg.resume_if_exists else _new_version(root, cfg.use_datetime_version)
        os.environ[VERSION_VARIABLE] = version
    return root / version


def find_resume_checkpoint(cfg: ExpManagerConfig, checkpoint_dir: Path) -> Path | None:
    """The checkpoint to continue from: the named one, else the newest `*last*.ckpt`; None to start afresh.

    Raises:
        ConfigError: The named one is missing, or there is none and `resume_ignore_no_checkpoint` is off.
        CheckpointError: It is damaged.
    """
    if cfg.resume_from_checkpoint:
        chosen = Path(cfg.resume_from_checkpoint)
        if not chosen.exists():
            raise ConfigError(f'exp_manager.resume_from_checkpoint: {chosen} does not exist.')
    elif not cfg.resume_if_exists:
        return None
    else:
        found = [
            p for p in checkpoint_dir.glob('*.ckpt') if 'last' in p.stem or (cfg.resume_past_end and 'end' in p.stem)
        ]
        if not found:
            if cfg.resume_ignore_no_checkpoint:
                return None
            raise ConfigError(
                f'exp_manager.resume_if_exists: no *last.ckpt in {checkpoint_dir}. To start afresh in that case, set '
                'exp_manager.resume_ignore_no_checkpoint=True.'
            )
        chosen = max(found, key=lambda p: (p.stat().st_mtime_ns, p.name))
    # A directory is a sharded checkpoint, whose own reader checks it. A file is a zip, whose index is at its end.
    if chosen.is_file() and not zipfile.is_zipfile(chosen):
        raise CheckpointError(
            f'{chosen} is damaged or incomplete (a write cut short?); delete it to resume from an older one.'
        )
    return chosen


def parse_duration(text: str) -> timedelta:
    """`DD:HH:MM:SS` as a timedelta.

    Raises:
        ValueError: Another form.
    """
    parts = text.strip().split(':')
    if len(parts) != 4 or not all(part.isdigit() for part in parts):
        raise ValueError(f"'{text}' is no duration DD:HH:MM:SS, such as 00:03:50:00.")
    days, hours, minutes, seconds = map(int, parts)
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _new_version(root: Path, by_time: bool) -> str:
    if by_time:
        return time.strftime('%Y-%m-%d_%H-%M-%S')
    taken = [int(p.name[8:]) for p in root.glob('version_*') if p.name[8:].isdigit()]
    return f'version_{max(taken, default=-1) + 1}'


def _copy_files(cfg: ExpManagerConfig, log_dir: Path) -> None:
    for name in cfg.files_to_copy or []:
        if not Path(name).is_file():
            raise ConfigError(f'exp_manager.files_to_copy: {name} does not exist.')
        shutil.copy(name, log_dir)


def _add_loggers(trainer: Any, cfg: ExpManagerConfig, log_dir: Path) -> None:
    wanted = cfg.create_tensorboard_logger or cfg.create_wandb_logger or cfg.create_csv_logger
    if not wanted:
        return
    if trainer.loggers:
        raise ConfigError(
            'the trainer has a logger already; set trainer.logger=False, or no exp_manager.create_*_logger.'
        )
    from lightning.pytorch import loggers

    added: list[Any] = []
    try:
        if cfg.create_tensorboard_logger:
            added.append(loggers.TensorBoardLogger(log_dir, name='', version='', **(cfg.summary_writer_kwargs or {})))
        if cfg.create_wandb_logger:
            added.append(loggers.WandbLogger(**{'save_dir': str(log_dir), **(cfg.wandb_logger_kwargs or {})}))
    except ModuleNotFoundError as err:
        raise MissingDependencyError(
            f'{err}. Install the loggers (pip install nemo_speech[loggers]), or set '
            'exp_manager.create_tensorboard_logger=False and exp_manager.create_csv_logger=True.'
        ) from err
    if cfg.create_csv_logger:
        # a new folder each run: Lightning empties the one it finds, and with it the curve before the resume
        added.append(loggers.CSVLogger(log_dir, name='csv'))
    trainer.loggers = added


def _early_stopping(params: EarlyStoppingParams) -> Any:
    from lightning.pytorch.callbacks import EarlyStopping

    return EarlyStopping(**vars(params))
