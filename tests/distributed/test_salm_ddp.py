"""A SALM under data parallelism, in two gloo processes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from nemo_speech.collections.speechlm2 import SALM
from tests.functional.test_salm_train import experiment
from tests.tiny import salm_config, write_json

REPO = Path(__file__).resolve().parents[2]
ROWS = (slice(0, 1), slice(1, 4))  # of the two ranks


def make_model(llm: str) -> SALM:
    torch.manual_seed(0)
    return SALM(salm_config(Path(llm))).eval()  # without dropout and batch statistics, rows do not depend on others


def make_batch(model: SALM, rows: slice = slice(None)) -> dict:
    """Four clips with 2, 9, 5 and 7 labelled tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 300, (4, 12), generator=generator)
    ids[:, 1] = model.audio_locator_tag_id
    labelled = torch.arange(12) >= 12 - torch.tensor([2, 9, 5, 7])[:, None]
    batch = {
        'audios': torch.randn(4, 8000, generator=generator),
        'audio_lens': torch.tensor([8000, 6400, 4800, 7000]),
        'input_ids': ids,
        'loss_mask': labelled,
    }
    return {name: tensor[rows] for name, tensor in batch.items()} | {'conversations': []}


class Step(nn.Module):
    """`training_step` as a forward, which DistributedDataParallel wants."""

    def __init__(self, model: SALM) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict) -> Tensor:
        return self.model.training_step(batch, 0)['loss']


def gradients(model: SALM) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def run_rank(rank: int, llm: str, directory: str) -> None:
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f'{directory}/store', 2)
    torch.distributed.init_process_group('gloo', store=store, rank=rank, world_size=2)
    model = make_model(llm)
    step = nn.parallel.DistributedDataParallel(Step(model))
    step(make_batch(model, ROWS[rank])).backward()
    torch.save(gradients(model), f'{directory}/{rank}.pt')
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_gradients_of_two_ranks_with_unequal_label_counts_equal_those_of_one(tiny_llm, tmp_path):
    mp.spawn(run_rank, (str(tiny_llm), str(tmp_path)), nprocs=2)
    serial = make_model(str(tiny_llm))
    serial.training_step(make_batch(serial), 0)['loss'].backward()
    expected = gradients(serial)
    for rank in (0, 1):
        got = torch.load(tmp_path / f'{rank}.pt', weights_only=True)
        assert got.keys() == expected.keys() and any('lora_B' in name for name in got)
        for name, grad in expected.items():
            torch.testing.assert_close(got[name], grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f'{n}: {m}')


@pytest.mark.slow
def test_training_script_runs_on_two_ranks(tiny_llm, tiny_cuts, tmp_path):
    config = experiment(tiny_llm, tiny_cuts, tmp_path / 'run', max_steps=4)
    config['trainer'] |= {'devices': 2, 'strategy': 'ddp'}
    config = write_json(tmp_path / 'run.yaml', config)
    script = REPO / 'examples/speechlm2/salm_train.py'
    command = [sys.executable, script, f'--config-path={config.parent}', '--config-name=run']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count('Stopped at step 4') + done.stdout.count('Stopped at step 4') == 1
    rows = next((tmp_path / 'run').rglob('metrics.csv')).read_text().splitlines()
    assert 'val_wer_clips' in rows[0]
    assert SALM.from_pretrained(tmp_path / 'run' / 'hf').transcribe([], verbose=False) == []
