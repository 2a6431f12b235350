"""What is done with a SALM on either side of a comparison: the same lines run on ours and on nemo_toolkit's.

Only names that both classes have are used, and no package but torch and safetensors, so that this runs in both
environments.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CLOCKS = {'wall': time.perf_counter, 'cpu': time.process_time}


def read_batch(path: str | Path) -> dict[str, Any]:
    """A batch of `SALMDataset` from safetensors: `audios, audio_lens, input_ids, loss_mask`."""
    from safetensors.torch import load_file

    return load_file(path) | {'conversations': []}


def write_batch(path: str | Path, batch: Mapping[str, Tensor]) -> Path:
    """Write what `read_batch` reads."""
    from safetensors.torch import save_file

    names = ('audios', 'audio_lens', 'input_ids', 'loss_mask')
    save_file({name: batch[name].contiguous() for name in names}, path)
    return Path(path)


class Training:
    """Training by hand, without a Trainer: what is frozen, the optimizer and its schedule are the model's own."""

    def __init__(self, model: Any) -> None:
        configured = model.configure_optimizers()
        schedule = configured.get('lr_scheduler')
        self.model = model
        self.optimizer = configured['optimizer']
        self.schedule = schedule['scheduler'] if isinstance(schedule, Mapping) else schedule
        model.train()

    def backward(self, batch: Mapping[str, Any]) -> float:
        """Forward and backward; gives the loss."""
        self.optimizer.zero_grad()
        loss = self.model.training_step(batch, 0)['loss']
        loss.backward()
        return float(loss.detach())

    def step(self, batch: Mapping[str, Any]) -> float:
        """Forward, backward and optimizer; gives the loss before the step."""
        loss = self.backward(batch)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return loss

    def timed_step(self, batch: Mapping[str, Any], clock: str) -> float:
        """Seconds of one step, by the wall's clock or in CPU time of this process."""
        start = CLOCKS[clock]()
        self.step(batch)
        return CLOCKS[clock]() - start


@torch.no_grad()
def eval_loss(model: Any, batch: Mapping[str, Any]) -> float:
    """Loss of `training_step` in eval mode."""
    model.eval()
    return float(model.training_step(batch, 0)['loss'])


def greedy_ids(model: Any, batch: Mapping[str, Any], prompt: str, max_new_tokens: int) -> list[list[int]]:
    """New token ids that answer `prompt` for each audio of the batch."""
    model.eval()
    dialog = [{'role': 'user', 'content': prompt}]
    num_audios = batch['audios'].shape[0]
    ids = model.generate(
        prompts=[dialog] * num_audios,
        audios=batch['audios'],
        audio_lens=batch['audio_lens'],
        max_new_tokens=max_new_tokens,
    )
    return ids.tolist()


def train_losses(training: Training, batches: Sequence[Mapping[str, Any]], num_steps: int) -> list[float]:
    """Loss of each of `num_steps` steps over the batches in turn."""
    return [training.step(batches[i % len(batches)]) for i in range(num_steps)]
