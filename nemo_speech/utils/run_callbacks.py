"""The callbacks that `exp_manager` adds."""

import shlex
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, ModelCheckpoint, Timer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from nemo_speech.utils.errors import ConfigError
from nemo_speech.utils.exp_manager import CheckpointParams, parse_duration
from nemo_speech.utils.logging import get_logger

logger = get_logger(__name__)


class RunCheckpoint(ModelCheckpoint):
    """Best and last checkpoints; one more last one whenever training stops within an epoch; `.nemo` files by choice.

    Lightning's `save_last` only follows its other triggers, so a run cut short by a time limit would lose what it did
    since. The extra one is written at the end of a batch: from there a resumed run continues exactly.
    """

    def __init__(self, params: CheckpointParams, directory: Path, name: str):
        if params.monitor is None and params.save_top_k not in (-1, 0, 1):
            raise ConfigError(
                f'exp_manager.checkpoint_callback_params.save_top_k: {params.save_top_k} without a monitor has '
                'nothing to rank by. Set monitor, or save_top_k to 1 (the newest), 0 (none) or -1 (all).'
            )
        interval = parse_duration(params.train_time_interval) if params.train_time_interval else None
        super().__init__(
            dirpath=params.dirpath or directory,
            filename=_filename(params),
            monitor=params.monitor if params.save_top_k != 0 else None,
            mode=params.mode,
            verbose=params.verbose,
            save_last=params.save_last,
            save_top_k=params.save_top_k,
            save_weights_only=params.save_weights_only,
            auto_insert_metric_name=params.auto_insert_metric_name,
            every_n_epochs=params.every_n_epochs,
            every_n_train_steps=params.every_n_train_steps,
            train_time_interval=interval,
            save_on_train_epoch_end=params.save_on_train_epoch_end,
            save_on_exception=params.save_on_exception,
            enable_version_counter=False,
        )
        self.CHECKPOINT_NAME_LAST = f'{self.filename}-last'
        self.params = params
        self.nemo_path = Path(params.dirpath or directory) / f'{params.prefix or name}{params.postfix}'
        self._last_step_saved_as_last = -1

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        finished = 0 < trainer.max_steps <= trainer.global_step
        stopping = (trainer.should_stop or finished) and not trainer.fast_dev_run
        if self.save_last and stopping and self._last_step_saved_as_last != trainer.global_step:
            counted = self._last_global_step_saved
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))
            # a validation may follow at this very step; its best checkpoint must not be skipped as saved already
            self._last_global_step_saved = counted

    def _save_last_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
        self._last_step_saved_as_last = trainer.global_step
        super()._save_last_checkpoint(trainer, monitor_candidates)

    def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
        before = set(self.best_k_models)
        try:
            super()._save_topk_checkpoint(trainer, monitor_candidates)
        except MisconfigurationException as error:
            known = ', '.join(sorted(monitor_candidates.keys() - {'epoch', 'step'}))
            raise ConfigError(
                f'exp_manager.checkpoint_callback_params.monitor: {self.monitor!r} is not logged. Logged are {known}.'
            ) from error
        if self.params.always_save_nemo and trainer.is_global_zero:
            for path in before - set(self.best_k_models):
                Path(path).with_suffix(self.params.postfix).unlink(missing_ok=True)
            for path in set(self.best_k_models) - before:
                trainer.lightning_module.save_to(Path(path).with_suffix(self.params.postfix))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_end(trainer, pl_module)
        if self.params.save_nemo_on_train_end and not trainer.fast_dev_run:
            if self.params.save_best_model and self.best_model_path:
                best = trainer.strategy.load_checkpoint(self.best_model_path)
                trainer.strategy.load_model_state_dict(best, strict=pl_module.strict_loading)
            if trainer.is_global_zero:
                pl_module.save_to(self.nemo_path)


class MaxTimePerRun(Timer):
    """Stops a run after a time, counted afresh in a resumed run (Lightning's Timer would go on counting)."""

    def __init__(self, duration: timedelta):
        super().__init__(duration=duration, interval='step')

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to restore."""


class StepTimer(Callback):
    """Logs the seconds each training batch takes, as `train_step_timing in s` (NeMo's name)."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._start_s = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        elapsed_s = time.perf_counter() - self._start_s
        pl_module.log('train_step_timing in s', elapsed_s, on_step=True, on_epoch=False, batch_size=1)


class FinalSummary(Callback):
    """At the end, says where everything is and what to run next."""

    def __init__(self, log_dir: Path):
        self.log_dir = log_dir

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._start_s = time.monotonic()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero and not trainer.fast_dev_run:
            logger.info('\n%s', self.text(trainer))

    def text(self, trainer: Any) -> str:
        """The summary."""
        took = timedelta(seconds=round(time.monotonic() - self._start_s))
        lines = [f'Stopped at step {trainer.global_step} (epoch {trainer.current_epoch}) after {took}.']
        lines.append(f'  results     {self.log_dir}')
        checkpoint = trainer.checkpoint_callback
        if isinstance(checkpoint, ModelCheckpoint):
            if checkpoint.best_model_path and checkpoint.monitor:
                score = f'{checkpoint.monitor} {checkpoint.best_model_score:.4f}'
                lines.append(f'  best        {checkpoint.best_model_path} ({score})')
            if checkpoint.last_model_path:
                lines.append(f'  last        {checkpoint.last_model_path}')
                finished = 0 < trainer.max_steps <= trainer.global_step
                command = _resume_command(checkpoint.last_model_path, trainer.max_steps if finished else None)
                lines.append(f'  {"to train on" if finished else "to resume  "} {command}')
        return '\n'.join(lines)


def command_line(argv: Sequence[str]) -> list[str]:
    """The command as it was typed, from `sys.orig_argv`: without an interpreter that only a console script's
    first line named."""
    if len(argv) > 1 and Path(argv[1]).stem == 'nemo-speech':
        return ['nemo-speech', *argv[2:]]
    return ['python', *argv[1:]]


def _resume_command(last: str, longer_than: int | None) -> str:
    """The command that goes on from `last`; after the last planned step, with twice as many planned."""
    replaced = {'exp_manager.resume_from_checkpoint': f"'{last}'"}
    if longer_than is not None:
        replaced['trainer.max_steps'] = str(2 * longer_than)
    kept = [a for a in command_line(sys.orig_argv) if a.lstrip('+').partition('=')[0] not in replaced]
    return shlex.join([*kept, *(f'++{key}={value}' for key, value in replaced.items())])


def _filename(params: CheckpointParams) -> str:
    if params.filename:
        return params.filename
    parts = [params.prefix] if params.prefix else []
    if params.monitor and params.save_top_k != 0:
        parts.append(f'{{{params.monitor}:.4f}}')
    return '-'.join([*parts, '{epoch}', '{step}'])
