"""One progress bar for the whole training run: step of steps, rate, ETA, loss, and what the model logs for the bar."""

from typing import Any

from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm


class TrainingProgressBar(TQDMProgressBar):
    """Counts optimizer steps up to `trainer.max_steps`, or where that is not set batches per epoch as Lightning does.

    Streamed data has no length, so Lightning's bar would show neither an end nor an ETA.
    """

    BAR_FORMAT = (
        '{desc}{percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]'
    )

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        self.train_progress_bar = self.init_train_tqdm()
        if self._counts_steps(trainer):
            self.train_progress_bar.set_description('Training', refresh=False)
            self.train_progress_bar.reset(trainer.max_steps)
            self.train_progress_bar.initial = self.train_progress_bar.n = trainer.global_step  # a resumed run
            self.train_progress_bar.unit = 'step'

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        if not self._counts_steps(trainer):
            super().on_train_epoch_start(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not self._counts_steps(trainer):
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            return
        bar: Tqdm = self.train_progress_bar
        if bar.n != trainer.global_step and self._should_update(trainer.global_step, trainer.max_steps):
            bar.set_postfix(self.get_metrics(trainer, pl_module), refresh=False)
            bar.n = trainer.global_step
            bar.refresh()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not self._counts_steps(trainer):
            super().on_train_epoch_end(trainer, pl_module)

    def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop('v_num', None)  # the logger's directory number tells nobody anything
        return metrics

    @staticmethod
    def _counts_steps(trainer: Any) -> bool:
        return trainer.max_steps > 0
