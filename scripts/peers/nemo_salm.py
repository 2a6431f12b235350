"""Serves nemo_toolkit's SALM to `scripts.peers.client`: one JSON request a line on stdin, one answer a line on stdout.

Runs in an environment that has nemo_toolkit and not ours; `NemoSALM` starts it. Tensors travel as safetensors files.
Everything that NeMo itself prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


class Server:
    """One SALM, and what is asked about it; each method is a request."""

    def __init__(self) -> None:
        from nemo.collections.speechlm2.models import SALM
        from peft.tuners.lora import torchao

        # peft refuses torchao's version even where nothing is quantised.
        torchao.is_torchao_available = lambda: False
        self.salm_class = SALM
        self.model: Any = None
        self.training: Any = None

    def versions(self) -> dict[str, str]:
        from importlib.metadata import version

        return {name: version(name) for name in ('nemo_toolkit', 'torch', 'transformers', 'peft')}

    def threads(self, number: int) -> None:
        import torch

        torch.set_num_threads(number)

    def load(self, directory: str) -> None:
        self.model = self.salm_class.from_pretrained(directory)
        self.training = None

    def save(self, directory: str) -> None:
        self.model.save_pretrained(directory)

    def state(self, file: str) -> None:
        from safetensors.torch import save_file

        save_file({k: v.detach().clone().contiguous() for k, v in self.model.state_dict().items()}, file)

    def loss(self, batch: str) -> float:
        from scripts.peers.salm_runs import eval_loss, read_batch

        return eval_loss(self.model, read_batch(batch))

    def generate(self, batch: str, prompt: str, max_new_tokens: int) -> list[list[int]]:
        from scripts.peers.salm_runs import greedy_ids, read_batch

        return greedy_ids(self.model, read_batch(batch), prompt, max_new_tokens)

    def begin_training(self, batch: str) -> list[str]:
        """Names of the parameters that train."""
        from scripts.peers.salm_runs import Training, read_batch

        self.training = Training(self.model)
        self.batch = read_batch(batch)
        return sorted(name for name, p in self.model.named_parameters() if p.requires_grad)

    def gradients(self, file: str) -> float:
        from safetensors.torch import save_file

        loss = self.training.backward(self.batch)
        grads = {name: p.grad.contiguous() for name, p in self.model.named_parameters() if p.grad is not None}
        save_file(grads, file)
        return loss

    def train(self, num_steps: int) -> list[float]:
        from scripts.peers.salm_runs import train_losses

        return train_losses(self.training, [self.batch], num_steps)

    def timed_step(self, clock: str) -> float:
        return self.training.timed_step(self.batch, clock)


def main() -> None:
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    server = Server()
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(server, request.pop('do'))(**request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == '__main__':
    main()
