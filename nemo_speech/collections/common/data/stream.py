"""The batches of a data set as one numbered sequence, which any number of workers produces and any run can re-enter.

Each worker samples the whole sequence (metadata only, no audio) and loads the batches whose number is its own. So the
order does not depend on the number of workers, tokenization stays out of the training process, and "where a run is" is
one pair of numbers.
"""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lhotse import CutSet
from lhotse.cut import Cut
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from nemo_speech.collections.common.data.batching import batches_of_examples, batches_of_rank, bucket_bins
from nemo_speech.collections.common.data.constraints import make_constraint
from nemo_speech.collections.common.data.conversation import NeMoMultimodalConversation
from nemo_speech.collections.common.data.filters import filtered, make_filters, needs_tokens
from nemo_speech.collections.common.data.loading_config import LhotseDataLoadingConfig
from nemo_speech.collections.common.data.sources import Source, open_sources
from nemo_speech.core.errors import ConfigError, DataError

__all__ = ['BatchStream', 'StreamItem', 'EpochEnd', 'open_stream']


@dataclass(frozen=True)
class StreamItem:
    """A collated batch, its number in the epoch, and what was dropped up to it."""

    step: int
    batch: Any
    drops: dict[str, int]

    def packed(self) -> StreamItem:
        """For the way out of a worker: lists (of conversations, with many small tensors) as bytes.

        Each tensor that leaves a worker otherwise takes a file descriptor of the training process.
        """
        return self._map(lambda value: _Packed(pickle.dumps(value)) if isinstance(value, list) else value)

    def unpacked(self) -> StreamItem:
        """The item as it was before `packed`."""
        return self._map(lambda value: pickle.loads(value.content) if isinstance(value, _Packed) else value)

    def pin_memory(self) -> StreamItem:
        """Called by torch's loader."""
        return self._map(lambda value: value.pin_memory() if isinstance(value, Tensor) else value)

    def _map(self, change: Callable[[Any], Any]) -> StreamItem:
        if not isinstance(self.batch, dict):
            return self
        return replace(self, batch={key: change(value) for key, value in self.batch.items()})


@dataclass(frozen=True)
class _Packed:
    content: bytes


@dataclass(frozen=True)
class EpochEnd:
    """The end of an epoch as a worker saw it: the number of batches in all, and what was dropped."""

    num_steps: int
    drops: dict[str, int]


class BatchStream(IterableDataset):
    """Yields the `StreamItem`s of one epoch, from `start_step` on, then `EpochEnd`; in workers, this worker's share.

    Args:
        source: Opened sources.
        config: Sampling and filters.
        collate: Turns a CutSet of the batch's examples into the batch (the `Dataset` of NeMo: `dataset[cuts]`).
        formatter: Prompt formatter, for conversations.
        tokenizer: For cuts whose transcripts are to be counted.
        rank, world_size: Data-parallel place.
        seed: Resolved seed of the run.
        drops: The counter that the sources write to.
        path: The loader's place in the configuration, for messages.
        repeat_unreadable: A batch that collates to None is replaced by the one before, so that all ranks step alike.
    """

    def __init__(
        self,
        source: Source,
        config: LhotseDataLoadingConfig,
        collate: Callable[[CutSet], Any],
        *,
        formatter: Any = None,
        tokenizer: Any = None,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        drops: Counter | None = None,
        path: str = '',
        repeat_unreadable: bool = False,
    ):
        super().__init__()
        self.source = source
        self.config = config
        self.collate = collate
        self.formatter = formatter
        self.tokenizer = tokenizer
        self.rank, self.world_size = rank, world_size
        self.seed = seed
        self.drops = Counter() if drops is None else drops
        self.path = path
        self.repeat_unreadable = repeat_unreadable
        self.bins: list[Any] | None = None
        self.epoch = 0
        self.start_step = 0

    def at(self, epoch: int, start_step: int) -> BatchStream:
        """The same stream, to be iterated from another place."""
        other = copy.copy(self)
        other.epoch, other.start_step = epoch, start_step
        return other

    def estimate_bins(self) -> list[Any] | None:
        """Bucket bounds of this stream; reads the first examples if the configuration does not say."""
        counted = dict(self.drops)
        bins = bucket_bins(self.examples(), self.config)
        # These examples come again in the epoch, which counts what it drops of them.
        self.drops.clear()
        self.drops.update(counted)
        return bins

    def examples(self) -> Iterator[Any]:
        """All examples of an epoch that pass the filters, formatted if sampling looks at tokens."""
        examples: Any = self.source.examples
        if needs_tokens(self.config):
            examples = map(self.format, examples)
        yield from filtered(examples, make_filters(self.config, make_constraint(self.config)), self.drops)

    def steps(self) -> Iterator[list[Any]]:
        """This rank's batches of the epoch as lists of examples; no audio is read."""
        batches = batches_of_examples(
            self.examples(),
            self.config,
            bins=self.bins,
            seed=self.seed,
            epoch=self.epoch,
            world_size=self.world_size,
        )
        return batches_of_rank(batches, rank=self.rank, world_size=self.world_size, drop_last=self.config.drop_last)

    def __iter__(self) -> Iterator[StreamItem | EpochEnd]:
        self.drops.clear()
        worker = get_worker_info()
        index, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        step, previous = -1, None
        for step, examples in enumerate(self.steps()):
            if step >= self.start_step and (step - self.start_step) % count == index:
                item = StreamItem(step, self._load(examples, previous, step), dict(self.drops))
                yield item if worker is None else item.packed()
            previous = examples
        yield EpochEnd(step + 1, dict(self.drops))

    def format(self, example: Any) -> Any:
        """Give a conversation its token ids, or a cut its transcript's, if it has none yet.

        Raises:
            ConfigError: A conversation without `prompt_format`, or a cut where conversations are wanted.
        """
        if isinstance(example, NeMoMultimodalConversation):
            if example.input_ids is not None:
                return example
            if self.formatter is None:
                raise ConfigError(
                    f"{self.path}.prompt_format is missing: conversation '{example.id}' cannot become token ids "
                    "without it. Set it to the model's, e.g. ${model.prompt_format}."
                )
            return example.apply_prompt_format(self.formatter)
        if isinstance(example, Cut):
            self._check_cut(example)
            return self._tokenized(example)
        return example

    def _check_cut(self, cut: Cut) -> None:
        if self.formatter is not None:
            raise ConfigError(
                f"{self.path}.input_cfg yields plain cuts (such as '{cut.id}'), but prompt_format is set, so "
                "conversations are wanted. Use type lhotse_as_conversation with manifest_filepath (NeMo manifest), "
                "cuts_path (lhotse) or shar_path, or add as_conversation: true to the source."
            )

    def _tokenized(self, cut: Cut) -> Cut:
        if self.tokenizer is not None and self.config.pretokenize:
            for supervision in cut.supervisions:
                supervision.tokens = _token_ids(self.tokenizer, supervision)
        return cut

    def _load(self, examples: list[Any], previous: list[Any] | None, step: int) -> Any:
        batch = self.collate(CutSet.from_cuts(map(self.format, examples)))
        if batch is not None or not self.repeat_unreadable:
            return batch
        self.drops['unreadable batches'] += 1
        batch = None if previous is None else self.collate(CutSet.from_cuts(map(self.format, previous)))
        if batch is None:
            names = ', '.join(str(example.id) for example in examples[:5])
            raise DataError(
                f"{self.path}: no example of batch {step} (epoch {self.epoch}: {names}, ...) nor of the one before "
                "it could be loaded. Check that the audio files exist and can be read."
            )
        return batch


def _token_ids(tokenizer: Any, supervision: Any) -> list[int]:
    text = supervision.text or ''
    if not hasattr(tokenizer, 'langs'):
        return tokenizer.text_to_ids(text)
    return tokenizer.text_to_ids(text, (supervision.custom or {}).get('target_lang') or supervision.language)


def open_stream(
    config: LhotseDataLoadingConfig,
    dataset: Any,
    *,
    tokenizer: Any = None,
    rank: int = 0,
    world_size: int = 1,
    path: str = '',
    repeat_unreadable: bool = False,
) -> BatchStream:
    """Open the sources of a loader as a stream of batches.

    Args:
        config: The loader's configuration.
        dataset: Its `dataset[cuts]` collates the examples of a batch.
        tokenizer: Given to the prompt formatter, which is built once.
        rank, world_size: Data-parallel place.
        path: The loader's place in the configuration, for messages.
        repeat_unreadable: See `BatchStream`.
    """
    drops: Counter = Counter()
    # NeMo orders data by shard_seed where that is a number; `randomized` would have ranks and workers disagree.
    seed = _shared_seed(config.seed if isinstance(config.shard_seed, str) else config.shard_seed)
    return BatchStream(
        open_sources(config, path=path, seed=seed, drops=drops),
        config,
        dataset.__getitem__,
        formatter=_formatter(config, tokenizer, path),
        tokenizer=tokenizer,
        rank=rank,
        world_size=world_size,
        seed=seed,
        drops=drops,
        path=path,
        repeat_unreadable=repeat_unreadable,
    )


def _formatter(config: LhotseDataLoadingConfig, tokenizer: Any, path: str) -> Any:
    if config.prompt_format is None:
        return None
    if tokenizer is None:
        raise ConfigError(f"{path}.prompt_format is set, but the loader was given no tokenizer.")
    from nemo_speech.collections.common.prompts import PromptFormatter

    try:
        return PromptFormatter.resolve(config.prompt_format)(tokenizer)
    except ConfigError as error:
        raise ConfigError(f"{path}.prompt_format: {error}") from error


def _shared_seed(seed: int | str) -> int:
    """A number that all ranks agree on; `trng` and `randomized` draw one for each run (it is kept in checkpoints)."""
    if isinstance(seed, int):
        return seed
    import secrets

    import torch.distributed as dist

    drawn = [secrets.randbelow(2**31)]
    if dist.is_available() and dist.is_initialized():
        dist.broadcast_object_list(drawn, src=0)
    return drawn[0]
