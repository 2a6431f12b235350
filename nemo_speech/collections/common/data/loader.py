"""A data loader that knows where it is: which batch the trainer consumed last, whatever workers have prefetched.

A position is kept as (epoch, step). A resumed loader samples the epoch anew from its start, without loading audio, and
goes on after the last consumed batch.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from nemo_speech.collections.common.data.stream import BatchStream, EpochEnd, StreamItem
from nemo_speech.core.errors import ConfigError, DataError
from nemo_speech.utils.logging import get_logger

__all__ = ['BatchLoader', 'StreamPosition']

_log = get_logger(__name__)

# Keys that may change between a checkpoint and its resumption: they do not touch which examples make which batch.
_FREE_KEYS = frozenset(
    'num_workers prefetch_factor pin_memory sample_rate channel_selector on_resume_mismatch use_lhotse'.split()
)


@dataclass(frozen=True)
class StreamPosition:
    """The next batch: `step` batches of data epoch `epoch` are behind."""

    epoch: int = 0
    step: int = 0


class BatchLoader:
    """Iterates the batches of a stream, an epoch for each `iter`, and can be saved and resumed between any two.

    Args:
        stream: What is loaded.
        await_consumption: A batch counts as consumed when `mark_consumed` is called, not when it is handed out. For
            trainers that fetch ahead.
        is_training: Epochs are shuffled differently, and go on where the last one stopped; one without a batch is an
            error, and otherwise a warning.

    Attributes:
        position: Where the next unconsumed batch is.
        dropped: Examples left out in the epoch so far, by reason.
    """

    def __init__(self, stream: BatchStream, *, await_consumption: bool = False, is_training: bool = True):
        self.stream = stream
        self.await_consumption = await_consumption
        self.is_training = is_training
        self.position = StreamPosition()
        self.dropped: dict[str, int] = {}
        self._fetched = StreamPosition()
        self._unconsumed: deque[tuple[StreamPosition, Any]] = deque()
        self._live: Iterator[StreamItem | EpochEnd] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Batches up to the end of the data epoch, beginning with those handed out but not consumed.

        Evaluation always begins at the start.
        """
        if not self.is_training:
            self.position = StreamPosition()
            self.close()
        handed_out = list(self._unconsumed)
        for _, batch in handed_out:
            yield batch
        started_at, any_yielded = self._fetched, bool(handed_out)
        while True:
            item = self._next()
            if item is not None:
                any_yielded = True
                yield self._hand_out(item)
            elif any_yielded or not self.is_training or started_at.step == 0:
                if not any_yielded:
                    message = f"{self.stream.path} gives no batch. {self._why_empty()}"
                    if self.is_training:
                        raise DataError(message)
                    _log.warning('%s', message)  # an empty validation set is allowed, but not in silence
                return
            else:
                # Resumed exactly at the end of an epoch: the next one follows at once.
                started_at = self._fetched

    def _hand_out(self, item: StreamItem) -> Any:
        self._fetched = StreamPosition(self._fetched.epoch, item.step + 1)
        if self.await_consumption:
            self._unconsumed.append((self._fetched, item.batch))
        else:
            self.position = self._fetched
        return item.batch

    def mark_consumed(self) -> None:
        """Note that the oldest batch handed out has been used."""
        if self._unconsumed:
            self.position, _ = self._unconsumed.popleft()

    def close(self) -> None:
        """Stop the workers; iterating again starts them at `position`."""
        self._live = None
        self._unconsumed.clear()
        self._fetched = self.position

    def _next(self) -> StreamItem | None:
        if self._live is None:
            self._live = self._start()
        for item in self._live:
            self.dropped = item.drops
            if isinstance(item, StreamItem):
                self._check_order(item)
                return item.unpacked()
            self._check_end(item)
        self._end_epoch()
        return None

    def _start(self) -> Iterator[StreamItem | EpochEnd]:
        if self.stream.bins is None:
            self.stream.bins = self.stream.estimate_bins()
        config = self.stream.config
        workers: dict[str, Any] = {}
        if config.num_workers > 0:
            workers = {
                'prefetch_factor': config.prefetch_factor,
                'worker_init_fn': partial(_seed_worker, seed=self.stream.seed, rank=self.stream.rank),
            }
        return iter(
            DataLoader(
                self.stream.at(self._fetched.epoch, self._fetched.step),
                batch_size=None,
                num_workers=config.num_workers,
                pin_memory=config.pin_memory,
                collate_fn=_as_is,
                **workers,
            )
        )

    def _check_order(self, item: StreamItem) -> None:
        if item.step != self._fetched.step:
            raise DataError(
                f"{self.stream.path}: batch {item.step} came where {self._fetched.step} was due; a worker died?"
            )

    def _check_end(self, end: EpochEnd) -> None:
        if end.num_steps < self._fetched.step:
            raise DataError(
                f"{self.stream.path}: the checkpoint was written after batch {self._fetched.step} of epoch "
                f"{self._fetched.epoch}, but the data now gives only {end.num_steps} batches an epoch. Was a manifest "
                "shortened? Restore it, or set on_resume_mismatch: restart to begin the data anew."
            )

    def _end_epoch(self) -> None:
        _log.info(
            "%s: epoch %d ended after %d batches. %s",
            self.stream.path,
            self._fetched.epoch,
            self._fetched.step,
            self._drop_report(),
        )
        self._live = None
        self._fetched = StreamPosition(self._fetched.epoch + 1, 0)
        if self._unconsumed:
            _, batch = self._unconsumed.pop()
            self._unconsumed.append((self._fetched, batch))
        else:
            self.position = self._fetched

    def _why_empty(self) -> str:
        if self.dropped:
            return f'{self._drop_report()} Widen the bounds, or mend the data.'
        config = self.stream.config
        keys = ('input_cfg', 'manifest_filepath', 'cuts_path', 'shar_path')
        sources = '; '.join(f'{k}: {_short(v)}' for k in keys if (v := getattr(config, k)) is not None)
        hint = ' (with drop_last: enough for one)' if config.drop_last else ''
        return f'Its sources hold no example{hint}: {sources}. Check that their files are not empty.'

    def _drop_report(self) -> str:
        if not self.dropped:
            return "No example was dropped."
        return "Dropped: " + ', '.join(f'{reason}: {count}' for reason, count in self.dropped.items()) + '.'

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for a resumed run to see the batches that this one would."""
        return {
            'position': asdict(self.position),
            'seed': self.stream.seed,
            'bins': self.stream.bins,
            'world_size': self.stream.world_size,
            'config': fingerprint(self.stream.config),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a saved run was.

        Raises:
            ConfigError: The configuration, or the number of ranks, differs so that batches would too.
        """
        changed = self._differences(state)
        if changed and self.stream.config.on_resume_mismatch == 'restart':
            _log.warning("%s begins anew, since it is not that of the checkpoint: %s", self.stream.path, changed)
            return
        if changed:
            raise ConfigError(
                f"{self.stream.path} is not what the checkpoint was written with, so its batches would differ: "
                f"{changed}. Undo the change, or set {self.stream.path}.on_resume_mismatch: restart to begin the data "
                "anew while keeping the model."
            )
        self.stream.seed = state['seed']
        self.stream.bins = state['bins']
        self.position = StreamPosition(**state['position'])
        self.close()

    def _differences(self, state: Mapping[str, Any]) -> str:
        old, new = state['config'], fingerprint(self.stream.config)
        changes = [f'{k}: {old.get(k)!r} -> {new.get(k)!r}' for k in sorted({*old, *new}) if old.get(k) != new.get(k)]
        if state['world_size'] != self.stream.world_size:
            changes.append(f"data-parallel ranks: {state['world_size']} -> {self.stream.world_size}")
        return '; '.join(changes)


def fingerprint(config: Any) -> dict[str, Any]:
    """The keys that decide which examples make which batch; long values as a digest."""
    items = {key: value for key, value in asdict(config).items() if key not in _FREE_KEYS and value is not None}
    return {key: _short(value) for key, value in items.items()}


def _short(value: Any) -> Any:
    if isinstance(value, (int, float, bool)):
        return value
    text = repr(value)
    return text if len(text) <= 200 else f'{text[:150]}... (sha {hashlib.sha256(text.encode()).hexdigest()[:12]})'


def _as_is(item: Any) -> Any:
    return item


def _seed_worker(worker_id: int, seed: int, rank: int) -> None:
    """Give each worker of each rank its own randomness, the same in every run."""
    from lhotse.utils import fix_random_seed

    fix_random_seed((seed + 100 * worker_id + 100_000 * rank) % 2**32)
