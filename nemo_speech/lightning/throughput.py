"""Seconds of audio for each second of training, in the progress bar and the logs."""

import time
from typing import Any

from lightning.pytorch.callbacks import Callback


class AudioThroughput(Callback):
    """Logs `audio_s_per_s`: audio in the batches of the last steps over the wall time they took.

    Batches tell their audio by `audio_lens` (samples); `sampling_rate` is the model's, in Hz.
    """

    NUM_STEPS = 20  # averaged over, so that one slow step does not jerk the display

    def __init__(self, sampling_rate: int) -> None:
        self.sampling_rate = sampling_rate
        self._steps: list[tuple[float, float]] = []  # (time at the end of the step, seconds of audio in it)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = [(time.perf_counter(), 0.0)]

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        audio_s = float(batch['audio_lens'].sum()) / self.sampling_rate
        self._steps = [*self._steps[-self.NUM_STEPS :], (time.perf_counter(), audio_s)]
        elapsed_s = self._steps[-1][0] - self._steps[0][0]
        total_s = sum(seconds for _, seconds in self._steps[1:])
        pl_module.log('audio_s_per_s', total_s / max(elapsed_s, 1e-9), prog_bar=True, batch_size=1)
