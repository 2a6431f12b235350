"""The data of a training run: loaders for training, named validation sets, tests and prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.pytorch.utilities import CombinedLoader

from nemo_speech.collections.common.data.loading_config import loading_config
from nemo_speech.core.config import build_config
from nemo_speech.core.errors import ConfigError

if TYPE_CHECKING:
    from nemo_speech.collections.common.data.loader import BatchLoader

__all__ = ['DataConfig', 'DataModule']

# Loading options of evaluation that training is not to impose.
_EVALUATION_DEFAULTS = {'shuffle': False, 'force_finite': True}


@dataclass
class DataConfig:
    """The `data` block. Each loader's keys are those of `LhotseDataLoadingConfig`.

    `validation_ds`, `test_ds` and `predict_ds` may have `datasets: {name: {...}}`: the keys beside it are defaults for
    all of them.
    """

    train_ds: dict[str, Any] | None = None
    validation_ds: dict[str, Any] | None = None
    test_ds: dict[str, Any] | None = None
    predict_ds: dict[str, Any] | None = None
    train_tokenizer: dict[str, Any] | None = None
    on_audio_error: Literal['raise', 'skip'] = 'raise'
    """Ours: what `salm_train.py` does about audio that cannot be read; `skip` drops its conversation and counts it."""


class DataModule(pl.LightningDataModule):
    """Loaders of lhotse data, resumable at any batch.

    Training batches come from one loader. Validation and test batches are dicts `{set name: batch or None}`, None for
    sets that have ended, as in NeMo.

    Args:
        cfg: The `data` block.
        tokenizer: The model's; formats and measures text.
        dataset: `dataset[cuts]` collates a CutSet (of conversations, for a speech LLM) into a batch, e.g.
            `SALMDataset`.
        data_parallel: `(rank, world size)`; None asks the trainer's strategy, or torch.distributed.
        section: Where the blocks stand in the configuration, for messages: ASR models have them in `model`.

    Raises:
        ConfigError: A key is unknown, unsupported, or has a wrong value.
    """

    def __init__(
        self,
        cfg: DataConfig | Mapping[str, Any],
        tokenizer: Any,
        dataset: Any,
        data_parallel: tuple[int, int] | None = None,
        section: str = 'data',
    ):
        super().__init__()
        self.cfg = cfg if is_dataclass(cfg) else build_config(DataConfig, _plain(cfg), path=section)
        self.section = section
        self.tokenizer = tokenizer
        self.dataset = dataset
        self.data_parallel = data_parallel
        self._train: BatchLoader | None = None
        self._train_state: Mapping[str, Any] | None = None
        self._check()

    def _check(self) -> None:
        """Find wrong keys before the model is built and the first batch is due."""
        if self.cfg.train_ds is not None:
            loading_config(self.cfg.train_ds, path=f'{self.section}.train_ds')
        for key in ('validation_ds', 'test_ds', 'predict_ds'):
            block = getattr(self.cfg, key)
            if block is not None:
                self._evaluation_configs(key, block)

    def train_dataloader(self) -> BatchLoader:
        """The training loader; the same object each time, so that it goes on where it was."""
        if self.cfg.train_ds is None:
            raise ConfigError(f"{self.section}.train_ds is missing: training needs data.")
        if self._train is None:
            path = f'{self.section}.train_ds'
            self._train = self._loader(loading_config(self.cfg.train_ds, path=path), path, True)
            if self._train_state is not None:
                self._train.load_state_dict(self._train_state)
        self._check_that_it_ends(self._train)
        return self._train

    def val_dataloader(self) -> CombinedLoader | list[Any]:
        """Named validation sets, or nothing."""
        return self._evaluation('validation_ds')

    def test_dataloader(self) -> CombinedLoader | list[Any]:
        """Named test sets, or nothing."""
        return self._evaluation('test_ds')

    def predict_dataloader(self) -> CombinedLoader | list[Any]:
        """Named sets to be answered; their manifests need no texts."""
        return self._evaluation('predict_ds')

    def _evaluation(self, key: str) -> CombinedLoader | list[Any]:
        block = getattr(self.cfg, key)
        if block is None:
            return []
        loaders = {
            name: self._loader(config, f'{self.section}.{key}.datasets.{name}', False)
            for name, config in self._evaluation_configs(key, block).items()
        }
        return CombinedLoader(loaders, mode='max_size')

    def _evaluation_configs(self, key: str, block: Mapping[str, Any]) -> dict[str, Any]:
        common = {name: value for name, value in block.items() if name != 'datasets'}
        sets = block.get('datasets', {'default': {}})
        if not isinstance(sets, Mapping) or not sets:
            raise ConfigError(f"{self.section}.{key}.datasets must map names to sets, but is {sets!r}.")
        for name, own in sets.items():
            if not isinstance(own, Mapping):
                raise ConfigError(
                    f"{self.section}.{key}.datasets.{name}: expected a mapping of keys, or {{}}, got {own!r}."
                )
        defaults = dict(_EVALUATION_DEFAULTS)
        if key == 'predict_ds':
            defaults['require_text'] = False
        return {
            name: loading_config({**defaults, **common, **own}, path=f'{self.section}.{key}.datasets.{name}')
            for name, own in sets.items()
        }

    def _loader(self, config: Any, path: str, is_training: bool) -> BatchLoader:
        from nemo_speech.collections.common.data.loader import BatchLoader
        from nemo_speech.collections.common.data.stream import open_stream

        rank, world_size = self._data_parallel()
        stream = open_stream(
            config,
            self.dataset,
            tokenizer=self.tokenizer,
            rank=rank,
            world_size=world_size,
            path=path,
            repeat_unreadable=is_training,
        )
        # Lightning fetches a batch ahead, so only its hook says what has been consumed.
        return BatchLoader(stream, await_consumption=is_training and self.trainer is not None, is_training=is_training)

    def _data_parallel(self) -> tuple[int, int]:
        from lightning.pytorch.strategies import ParallelStrategy

        if self.data_parallel is not None:
            return self.data_parallel
        if self.trainer is not None and isinstance(self.trainer.strategy, ParallelStrategy):
            place = self.trainer.strategy.distributed_sampler_kwargs
            return place['rank'], place['num_replicas']
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return 0, 1

    def _check_that_it_ends(self, loader: BatchLoader) -> None:
        trainer: Any = self.trainer
        if trainer is None or not loader.stream.source.is_endless:
            return
        has_timer = any(isinstance(callback, pl.callbacks.Timer) for callback in trainer.callbacks)
        if trainer.max_steps == -1 and trainer.limit_train_batches == 1.0 and not has_timer:
            raise ConfigError(
                f"{self.section}.train_ds mixes several sources, which repeat for ever, so an epoch never ends. Set "
                f"trainer.max_steps, limit_train_batches or max_time, or {self.section}.train_ds.force_finite: true "
                "to read each example once an epoch."
            )

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Called by Lightning when it takes a batch into use."""
        if self._train is not None and self.trainer is not None and self.trainer.training:
            self._train.mark_consumed()
        return batch

    def teardown(self, stage: str) -> None:
        """Stop the workers of the training loader."""
        if self._train is not None and stage == 'fit':
            self._train.close()

    def state_dict(self) -> dict[str, Any]:
        """Where training is in its data; Lightning puts it into checkpoints."""
        if self._train is not None:
            return {'train': self._train.state_dict()}
        return {} if self._train_state is None else {'train': dict(self._train_state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up training data where a checkpoint left it."""
        self._train_state = state_dict.get('train')
        if self._train is not None and self._train_state is not None:
            self._train.load_state_dict(self._train_state)


def _plain(cfg: Any) -> Any:
    from omegaconf import DictConfig, OmegaConf

    return OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else cfg
