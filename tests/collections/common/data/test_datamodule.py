"""The data module with the real dataset and tokenizer: named sets, mixed batches, prediction, early errors."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from nemo_speech.collections.common.tokenizers import AutoTokenizer
from nemo_speech.collections.speechlm2.data import DataModule, SALMDataset
from nemo_speech.core.errors import ConfigError
from tests.collections.common.data.small_data import (
    TAG,
    ByteTokenizer,
    NamesDataset,
    as_conversation,
    nemo_rows,
    write_jsonl,
    write_nemo_manifest,
    write_wavs,
)
from tests.tiny import make_tiny_llm

COMMON = {'prompt_format': 'llama2', 'token_equivalent_duration': 0.08, 'audio_locator_tag': TAG, 'batch_size': 2}


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory) -> AutoTokenizer:
    directory = make_tiny_llm(tmp_path_factory.mktemp('llm'))
    return AutoTokenizer(directory, additional_special_tokens=[TAG])


@pytest.fixture(scope='module')
def clips(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp('clips')
    write_wavs(root, [0.5, 1.0, 0.75], channels=2, rate=8000)
    return write_jsonl(root / 'm.jsonl', nemo_rows([0.5, 1.0, 0.75]))


def named(manifest: Path, **keys: Any) -> DataModule:
    return DataModule({'validation_ds': {**COMMON, 'datasets': keys}}, ByteTokenizer(), NamesDataset())


def test_batches_of_audio_and_text_alike(clips, tokenizer):
    (clips.parent / 'a.txt').write_text('log in again\nthank you for calling goodbye\n')
    sources = [
        as_conversation(clips),
        {'type': 'txt', 'paths': str(clips.parent / 'a.txt'), 'tags': {'context': 'Say:'}},
    ]
    cfg = {'train_ds': {**COMMON, 'batch_size': 5, 'input_cfg': sources, 'force_finite': True, 'num_workers': 1}}
    (batch,) = DataModule(cfg, tokenizer, SALMDataset(tokenizer)).train_dataloader()
    assert batch['audios'].shape == (3, 16000)
    assert sorted(batch['audio_lens'].tolist()) == [8000, 12000, 16000]
    tag_id = tokenizer.token_to_id(TAG)
    assert int((batch['input_ids'] == tag_id).sum()) == 3
    assert [c.is_text_only for c in batch['conversations']].count(True) == 2
    assert batch['loss_mask'].any(dim=1).all()


def test_validation_sets_are_named_and_end_apart(tmp_path):
    long, short = (write_nemo_manifest(tmp_path / f'{n}.jsonl', n) for n in (5, 2))
    module = named(long, long={'input_cfg': [as_conversation(long)]}, short={'input_cfg': [as_conversation(short)]})
    for _ in range(2):
        batches = [batch for batch, _, _ in module.val_dataloader()]
        sizes = [{name: b and len(b['ids']) for name, b in batch.items()} for batch in batches]
        assert sizes == [{'long': 2, 'short': 2}, {'long': 2, 'short': None}, {'long': 1, 'short': None}]


def test_validation_set_without_a_batch_is_allowed_and_told(tmp_path, caplog):
    full, empty = (write_nemo_manifest(tmp_path / f'{n}.jsonl', n) for n in (3, 0))
    module = named(full, full={'input_cfg': [as_conversation(full)]}, bare={'input_cfg': [as_conversation(empty)]})
    with caplog.at_level('WARNING', logger='nemo_speech'):
        batches = list(module.val_dataloader())
    assert batches and all(batch['bare'] is None for batch, *_ in batches)
    assert 'data.validation_ds.datasets.bare gives no batch. Its sources hold no example' in caplog.text


def test_mixed_validation_set_is_finite(tmp_path):
    parts = [write_nemo_manifest(tmp_path / f'{n}.jsonl', 3, prefix=n) for n in 'ab']
    module = named(parts[0], both={'input_cfg': [as_conversation(p) for p in parts]})
    assert sum(len(batch['both']['ids']) for batch, _, _ in module.val_dataloader()) == 6


def test_prediction_needs_no_texts(tmp_path):
    rows = [{k: v for k, v in row.items() if k != 'text'} for row in nemo_rows([1.0, 2.0])]
    path = write_jsonl(tmp_path / 'm.jsonl', rows)
    item = as_conversation(path, tags={'context': 'Say:'})
    module = DataModule({'predict_ds': {**COMMON, 'input_cfg': [item]}}, ByteTokenizer(), NamesDataset())
    (batch,) = (batch for batch, _, _ in module.predict_dataloader())
    assert batch['default']['ids'] == ['u000', 'u001']


def test_absent_sets_are_no_loaders():
    module = DataModule({}, ByteTokenizer(), NamesDataset())
    assert module.val_dataloader() == module.test_dataloader() == []
    with pytest.raises(ConfigError, match='data.train_ds is missing'):
        module.train_dataloader()


WRONG = {
    'block': ({'training_ds': {}}, r'data.training_ds: unknown key.*train_ds'),
    'train key': ({'train_ds': {'batch_sise': 1}}, r'data.train_ds.batch_sise.*batch_size'),
    'set key': (
        {'validation_ds': {'batch_size': 1, 'datasets': {'easy': {'suffle': True}}}},
        r'data.validation_ds.datasets.easy.suffle.*shuffle',
    ),
    'set without keys': (
        {'validation_ds': {'batch_size': 1, 'datasets': {'easy': None}}},
        r'validation_ds.datasets.easy: expected a mapping',
    ),
    'sets': ({'test_ds': {'batch_size': 1, 'datasets': ['easy']}}, r'data.test_ds.datasets must map names'),
}


@pytest.mark.parametrize('cfg, message', WRONG.values(), ids=WRONG.keys())
def test_wrong_keys_are_found_at_once(cfg, message):
    with pytest.raises(ConfigError, match=message):
        DataModule(cfg, ByteTokenizer(), NamesDataset())


class Validated(pl.LightningModule):
    """Notes the sets that validation and testing bring."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)
        self.sets: list[dict[str, int]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        return self.weight(batch['x']).mean()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.sets.append({name: len(b['ids']) for name, b in batch.items() if b is not None})

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_trainer_validates_the_same_batches_each_time(tmp_path):
    manifest = write_nemo_manifest(tmp_path / 'm.jsonl', 8)
    source = {**COMMON, 'input_cfg': [as_conversation(manifest)]}
    cfg = {'train_ds': source, 'validation_ds': source, 'test_ds': source}
    model = Validated()
    trainer = pl.Trainer(
        accelerator='cpu',
        max_epochs=2,
        limit_val_batches=3,
        num_sanity_val_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataModule(cfg, ByteTokenizer(), NamesDataset()))
    assert model.sets == [{'default': 2}] * 7
    trainer.test(model, DataModule(cfg, ByteTokenizer(), NamesDataset()), verbose=False)
    assert model.sets[7:] == [{'default': 2}] * 4
