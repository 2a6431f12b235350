"""A resumed run sees the batches that an uninterrupted one sees: real Lightning trainer, real checkpoints."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from nemo_speech.collections.speechlm2.data import DataModule
from nemo_speech.core.errors import ConfigError, DataError
from tests.collections.common.data.small_data import (
    ByteTokenizer,
    NamesDataset,
    as_conversation,
    write_nemo_manifest,
)


class Watcher(pl.LightningModule):
    """A one-weight model that writes down the ids of each training batch."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)
        self.seen: list[list[str]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        self.seen.append(batch['ids'])
        return self.weight(batch['x']).mean()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        assert batch['default'] is not None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


SAMPLING = {
    'fixed': {'batch_size': 3},
    'bucketing': {
        'use_bucketing': True,
        'num_buckets': 3,
        'batch_duration': 40.0,
        'bucket_buffer_size': 8,
        'shuffle_buffer_size': 8,
    },
    'tokens': {'use_multimodal_sampling': True, 'batch_tokens': 600, 'use_bucketing': True, 'num_buckets': 3},
}


def data(manifest: Path, **train: Any) -> DataModule:
    common = {'prompt_format': 'llama2', 'token_equivalent_duration': 0.08, 'input_cfg': [as_conversation(manifest)]}
    cfg = {
        'train_ds': {**common, 'shuffle': True, 'seed': 7, **train},
        'validation_ds': {**common, 'batch_size': 2},
    }
    return DataModule(cfg, ByteTokenizer(), NamesDataset())


def fit(
    datamodule: DataModule, root: Path, max_steps: int, ckpt: Path | None = None, **trainer: Any
) -> tuple[list[list[str]], Path]:
    model = Watcher()
    saver = ModelCheckpoint(root, filename='{step}', every_n_train_steps=1, save_top_k=-1)
    pl.Trainer(
        accelerator='cpu',
        max_steps=max_steps,
        callbacks=[saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **trainer,
    ).fit(model, datamodule, ckpt_path=ckpt)
    return model.seen, root / f'step={max_steps}.ckpt'


@pytest.mark.parametrize('num_workers', [0, 2])
@pytest.mark.parametrize('sampling', list(SAMPLING))
def test_resumed_run_sees_the_batches_of_an_uninterrupted_one(tmp_path, sampling, num_workers):
    manifest = write_nemo_manifest(tmp_path / 'm.jsonl', 40)
    extra = {**SAMPLING[sampling], 'num_workers': num_workers}
    straight, _ = fit(data(manifest, **extra), tmp_path / 'a', 6)
    first, ckpt = fit(data(manifest, **extra), tmp_path / 'b', 3)
    second, _ = fit(data(manifest, **extra), tmp_path / 'c', 6, ckpt)
    assert first + second == straight
    assert len({name for batch in straight for name in batch}) == sum(map(len, straight))


@pytest.mark.parametrize('stop', range(1, 9))
def test_resume_at_any_step_across_epochs(tmp_path, stop):
    """Epochs of 4 batches; stops in the middle of one, at its end, and after it."""
    manifest = write_nemo_manifest(tmp_path / 'm.jsonl', 12)
    straight, _ = fit(data(manifest, batch_size=3), tmp_path / 'a', 10)
    first, ckpt = fit(data(manifest, batch_size=3), tmp_path / 'b', stop)
    second, _ = fit(data(manifest, batch_size=3), tmp_path / 'c', 10, ckpt)
    assert first + second == straight
    assert straight[:4] != straight[4:8]
    assert sorted(sum(straight[:4], [])) == sorted(sum(straight[4:8], []))


@pytest.mark.parametrize('limit', [2, 3])
def test_limited_epochs_go_on_where_the_last_one_stopped(tmp_path, limit):
    """`limit_train_batches` cuts a pass over the data into trainer epochs; no batch is lost or seen twice."""
    manifest = write_nemo_manifest(tmp_path / 'm.jsonl', 36)
    trainer = {'limit_train_batches': limit, 'limit_val_batches': 1}
    whole, _ = fit(data(manifest, batch_size=3), tmp_path / 'w', 9)
    straight, _ = fit(data(manifest, batch_size=3), tmp_path / 'a', 9, **trainer)
    first, ckpt = fit(data(manifest, batch_size=3), tmp_path / 'b', 5, **trainer)
    second, _ = fit(data(manifest, batch_size=3), tmp_path / 'c', 9, ckpt, **trainer)
    assert first + second == straight == whole


def test_resume_of_an_endless_mix_with_other_workers(tmp_path):
    parts = [write_nemo_manifest(tmp_path / f'{p}.jsonl', 5, prefix=p) for p in 'ab']
    mix = [as_conversation(part, weight=w) for part, w in zip(parts, (0.8, 0.2))]
    straight, _ = fit(data(parts[0], batch_size=3, input_cfg=mix), tmp_path / 'a', 8)
    first, ckpt = fit(data(parts[0], batch_size=3, input_cfg=mix), tmp_path / 'b', 5)
    second, _ = fit(data(parts[0], batch_size=3, input_cfg=mix, num_workers=2), tmp_path / 'c', 8, ckpt)
    assert first + second == straight


def test_resume_with_another_configuration_is_refused(tmp_path):
    manifest = write_nemo_manifest(tmp_path / 'm.jsonl', 12)
    _, ckpt = fit(data(manifest, batch_size=3), tmp_path / 'b', 2)
    with pytest.raises(ConfigError, match=r'batch_size: 3 -> 2.*on_resume_mismatch: restart'):
        fit(data(manifest, batch_size=2), tmp_path / 'c', 4, ckpt)
    seen, _ = fit(data(manifest, batch_size=2, on_resume_mismatch='restart'), tmp_path / 'd', 4, ckpt)
    straight, _ = fit(data(manifest, batch_size=2), tmp_path / 'e', 2)
    assert seen == straight


def test_resume_on_shortened_data_says_so(tmp_path):
    manifest = write_nemo_manifest(tmp_path / 'm.jsonl', 12)
    _, ckpt = fit(data(manifest, batch_size=3), tmp_path / 'b', 3)
    write_nemo_manifest(manifest, 6)
    with pytest.raises(DataError, match='after batch 3 of epoch 0.*only 2 batches.*on_resume_mismatch'):
        fit(data(manifest, batch_size=3), tmp_path / 'c', 6, ckpt)


def test_endless_training_data_needs_a_limit(tmp_path):
    manifest = write_nemo_manifest(tmp_path / 'm.jsonl', 4)
    with pytest.raises(ConfigError, match='force_finite'):
        fit(data(manifest, batch_size=2, input_cfg=[as_conversation(manifest)] * 2), tmp_path, -1, max_epochs=1)
