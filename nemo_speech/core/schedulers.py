"""NeMo's learning-rate schedules, each as one closed formula of the step; the curves equal nemo_toolkit 3.0.0's.

Common to all: a linear warm-up `(step + 1) / (warmup + 1)` through step `warmup_steps`, and `min_lr` after step
`max_steps`. Steps and ratios of `max_steps` exclude each other. Every parameter group keeps its own base rate.

Notation in the code: `done` is the share of the annealing phase that has passed, in 0..1.
"""

import copy
import math
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nemo_speech.core.errors import ConfigError
from nemo_speech.utils.logging import get_logger

logger = get_logger(__name__)
# What a checkpoint says of a schedule; its course is the configuration's.
_PLACE = ('last_epoch', '_step_count', 'base_lrs', '_last_lr')


def _go_on_from(schedule: LRScheduler, state_dict: dict[str, Any]) -> None:
    """Go on from a checkpoint's step, on the course of the present configuration: a run may be made longer.

    Differences to the checkpoint's course are logged, and the groups' rates set to the new one.
    """
    course = {k: v for k, v in vars(schedule).items() if k not in (*_PLACE, 'optimizer') and not k.startswith('_')}
    changed = [f'{k} {state_dict[k]} -> {v}' for k, v in course.items() if k in state_dict and state_dict[k] != v]
    LRScheduler.load_state_dict(schedule, {key: state_dict[key] for key in _PLACE if key in state_dict})
    if changed:
        logger.warning('lr_scheduler differs from the checkpoint, and the new one counts: %s', ', '.join(changed))
        schedule._last_lr = schedule.get_lr()
        for group, lr in zip(schedule.optimizer.param_groups, schedule._last_lr):
            group['lr'] = lr


class WarmupPolicy(LRScheduler):
    """Linear warm-up, then the base rate. Subclasses replace `anneal`.

    Args:
        optimizer: Its groups' `lr` are the base rates.
        warmup_steps: Steps of warm-up; or `warmup_ratio`, a share of `max_steps`.
        max_steps: Last step of the schedule; from then on the rate is `min_lr`.
        min_lr: The rate at the end.

    Raises:
        ConfigError: Steps and ratio together, a ratio without `max_steps`, or a base rate under `min_lr`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        warmup_steps: int | None = None,
        warmup_ratio: float | None = None,
        max_steps: int | None = None,
        min_lr: float = 0.0,
        last_epoch: int = -1,
    ):
        self.warmup_steps = _steps('warmup', warmup_steps, warmup_ratio, max_steps)
        self.max_steps = max_steps
        self.min_lr = min_lr
        super().__init__(optimizer, last_epoch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `_go_on_from`."""
        _go_on_from(self, state_dict)

    def get_lr(self) -> list[float | Tensor]:
        """Rates of the groups at the current step."""
        groups = self.optimizer.param_groups
        return [self._group_lr(group, float(base_lr)) for group, base_lr in zip(groups, self.base_lrs)]

    def _group_lr(self, group: dict, base_lr: float) -> float:
        """Rate of a group, on the schedule's whole course squeezed between its `start_step` and `end_step` if any."""
        start, end = group.get('start_step', 0), group.get('end_step', self.max_steps)
        if self.last_epoch < start:
            return 0.0
        if (start, end) == (0, self.max_steps):
            return self.lr_at(self.last_epoch, base_lr)
        own = copy.copy(self)
        own.max_steps = None if end is None else end - start
        return own.lr_at(self.last_epoch - start, base_lr)

    def lr_at(self, step: int, base_lr: float) -> float:
        """Rate of a group with `base_lr` at optimizer step `step` (0 is the first)."""
        if 0 < self.warmup_steps and step <= self.warmup_steps:
            return base_lr * (step + 1) / (self.warmup_steps + 1)
        if self.max_steps is not None and step > self.max_steps:
            return self.min_lr
        return self.anneal(step, base_lr)

    def anneal(self, step: int, base_lr: float) -> float:
        """Rate after the warm-up, up to and including `max_steps`."""
        return base_lr

    def _done(self, step: int, start: int) -> float:
        assert self.max_steps is not None  # whoever anneals requires it
        return min((step - start) / max(1, self.max_steps - start), 1.0)


class WarmupHoldPolicy(WarmupPolicy):
    """Warm-up, the base rate for `hold_steps` (or `hold_ratio`), then `decay`, which here is the base rate too."""

    def __init__(
        self, optimizer: Optimizer, *, hold_steps: int | None = None, hold_ratio: float | None = None, **kwargs
    ):
        _check_names(self, kwargs)
        self.hold_steps = _steps('hold', hold_steps, hold_ratio, kwargs.get('max_steps'))
        super().__init__(optimizer, **kwargs)

    @property
    def hold_end(self) -> int:
        """Last step of the hold."""
        return self.warmup_steps + self.hold_steps

    def anneal(self, step: int, base_lr: float) -> float:
        return base_lr if step <= self.hold_end else self.decay(step, base_lr)

    def decay(self, step: int, base_lr: float) -> float:
        """Rate after the hold."""
        return base_lr


class WarmupHoldAnnealLinear(WarmupHoldPolicy):
    """Warm-up, hold, straight line to `min_lr`."""

    def decay(self, step: int, base_lr: float) -> float:
        return _polynomial(self._done(step, self.hold_end), base_lr, self.min_lr, power=1.0)


class WarmupHoldAnnealOneMinusSquareRoot(WarmupHoldPolicy):
    """Warm-up, hold, then `base * (1 - sqrt(done))`, not under `min_lr`."""

    def decay(self, step: int, base_lr: float) -> float:
        return max(base_lr * (1.0 - math.sqrt(self._done(step, self.hold_end))), self.min_lr)


class WarmupAnnealHoldPolicy(WarmupPolicy):
    """Warm-up, annealing, and `min_lr` for the last `constant_steps` (or `constant_ratio`) of the schedule."""

    def __init__(
        self, optimizer: Optimizer, *, constant_steps: int | None = None, constant_ratio: float | None = None, **kwargs
    ):
        _check_names(self, kwargs)
        max_steps = kwargs.get('max_steps')
        self.constant_steps = _steps('constant', constant_steps, constant_ratio, max_steps)
        if max_steps is None:
            raise ConfigError(f'{type(self).__name__}: set max_steps; the schedule is laid out from its end.')
        super().__init__(optimizer, **kwargs)

    @property
    def decay_steps(self) -> int:
        """Steps between the warm-up and the constant tail."""
        assert self.max_steps is not None
        return self.max_steps - self.warmup_steps - self.constant_steps

    def anneal(self, step: int, base_lr: float) -> float:
        in_tail = self.constant_steps > 0 and step > self.warmup_steps + self.decay_steps
        return self.min_lr if in_tail else base_lr


class CosineAnnealing(WarmupAnnealHoldPolicy):
    """Warm-up, half a cosine from the base rate to `min_lr`, then `min_lr`.

    With a constant tail the warm-up is `step / warmup_steps`, from 0 (NeMo's other convention, kept because it is in
    its configs).
    """

    def __init__(self, optimizer: Optimizer, *, max_steps: int, min_lr: float = 0.0, **kwargs):
        super().__init__(optimizer, max_steps=max_steps, min_lr=min_lr, **kwargs)
        _check_floor(self)

    def lr_at(self, step: int, base_lr: float) -> float:
        if self.constant_steps > 0 and 0 < self.warmup_steps and step <= self.warmup_steps:
            return base_lr * step / self.warmup_steps
        return super().lr_at(step, base_lr)

    def anneal(self, step: int, base_lr: float) -> float:
        done = min((step - self.warmup_steps) / max(1, self.decay_steps), 1.0)
        return self.min_lr + (base_lr - self.min_lr) * 0.5 * (1.0 + math.cos(math.pi * done))


class SquareAnnealing(WarmupPolicy):
    """Warm-up, then `base * (1 - done)^2`, not under `min_lr`."""

    def __init__(self, optimizer: Optimizer, *, max_steps: int, min_lr: float = 1e-5, **kwargs):
        super().__init__(optimizer, max_steps=max_steps, min_lr=min_lr, **kwargs)
        _check_floor(self)

    def anneal(self, step: int, base_lr: float) -> float:
        return max(base_lr * (1.0 - self._done(step, self.warmup_steps)) ** 2, self.min_lr)


class SquareRootAnnealing(WarmupPolicy):
    """Warm-up, then `base * sqrt(1 - step / max_steps)`, not under `min_lr`; the warm-up counts as passed."""

    def __init__(self, optimizer: Optimizer, *, max_steps: int, min_lr: float = 0.0, **kwargs):
        super().__init__(optimizer, max_steps=max_steps, min_lr=min_lr, **kwargs)
        _check_floor(self)

    def anneal(self, step: int, base_lr: float) -> float:
        return max(base_lr * math.sqrt(1.0 - self._done(step, 0)), self.min_lr)


class WarmupAnnealing(WarmupPolicy):
    """Warm-up, then a straight line to `min_lr`."""

    def __init__(self, optimizer: Optimizer, *, max_steps: int, **kwargs):
        super().__init__(optimizer, max_steps=max_steps, **kwargs)

    def anneal(self, step: int, base_lr: float) -> float:
        return _polynomial(self._done(step, self.warmup_steps), base_lr, self.min_lr, power=1.0)


class PolynomialDecayAnnealing(WarmupPolicy):
    """Warm-up, then `(1 - done)^power` down to `min_lr` (`cycle` has no effect: that is the end)."""

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        max_steps: int,
        min_lr: float = 0.0,
        power: float = 1.0,
        cycle: bool = False,
        **kwargs,
    ):
        self.power = power
        self.cycle = cycle
        super().__init__(optimizer, max_steps=max_steps, min_lr=min_lr, **kwargs)

    def anneal(self, step: int, base_lr: float) -> float:
        return _polynomial(self._done(step, self.warmup_steps), base_lr, self.min_lr, self.power)


class PolynomialHoldDecayAnnealing(WarmupHoldPolicy):
    """Warm-up, hold, then `(1 - done)^power` to `min_lr` (`cycle` has no effect: that is the end)."""

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        max_steps: int,
        min_lr: float = 0.0,
        power: float = 1.0,
        cycle: bool = False,
        **kwargs,
    ):
        self.power = power
        self.cycle = cycle
        super().__init__(optimizer, max_steps=max_steps, min_lr=min_lr, **kwargs)

    def decay(self, step: int, base_lr: float) -> float:
        return _polynomial(self._done(step, self.hold_end), base_lr, self.min_lr, self.power)


class InverseSquareRootAnnealing(WarmupPolicy):
    """Warm-up, then `base * sqrt((warmup + 1) / (step + 1))`."""

    def __init__(self, optimizer: Optimizer, *, max_steps: int, **kwargs):
        super().__init__(optimizer, max_steps=max_steps, **kwargs)

    def anneal(self, step: int, base_lr: float) -> float:
        return base_lr * math.sqrt((self.warmup_steps + 1) / (step + 1))


class NoamHoldAnnealing(WarmupHoldPolicy):
    """Warm-up, hold, then `base * (warmup / (step - hold))^decay_rate`, not under `min_lr`.

    Raises:
        ConfigError: No warm-up: the decay is measured against it.
    """

    def __init__(
        self, optimizer: Optimizer, *, max_steps: int, decay_rate: float = 0.5, min_lr: float = 0.0, **kwargs
    ):
        self.decay_rate = decay_rate
        super().__init__(optimizer, max_steps=max_steps, min_lr=min_lr, **kwargs)

    def decay(self, step: int, base_lr: float) -> float:
        if self.warmup_steps == 0:
            raise ConfigError(
                'NoamHoldAnnealing: set warmup_steps or warmup_ratio; its decay is measured against the warm-up.'
            )
        return max(base_lr * (self.warmup_steps / (step - self.hold_steps)) ** self.decay_rate, self.min_lr)


class NoamAnnealing(WarmupPolicy):
    """`base * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)` (Vaswani et al. 2017), without end.

    Args:
        optimizer: Its `lr` is a factor, usually around 1 to 5.
        d_model: Width of the model.
        **kwargs: As for `WarmupPolicy`; `min_lr` holds after the warm-up.
    """

    def __init__(self, optimizer: Optimizer, *, d_model: int, **kwargs):
        self.scale = d_model**-0.5
        super().__init__(optimizer, **kwargs)

    def lr_at(self, step: int, base_lr: float) -> float:
        at = max(1, step)
        rate = (
            base_lr
            * self.scale
            * (at**-0.5 if self.warmup_steps == 0 else min(at**-0.5, at * self.warmup_steps**-1.5))
        )
        return max(rate, self.min_lr) if step > self.warmup_steps else rate


class SquareRootConstantPolicy(LRScheduler):
    """`constant_steps^-0.5` through `constant_steps`, whatever the base rate; `anneal`; `min_lr` after `max_steps`."""

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        constant_steps: int | None = None,
        constant_ratio: float | None = None,
        max_steps: int | None = None,
        min_lr: float = 0.0,
        last_epoch: int = -1,
    ):
        self.constant_steps = _steps('constant', constant_steps, constant_ratio, max_steps)
        if self.constant_steps < 1:
            raise ConfigError(
                f'{type(self).__name__}: set constant_steps or constant_ratio; the rate is measured against it.'
            )
        self.max_steps = max_steps
        self.min_lr = min_lr
        super().__init__(optimizer, last_epoch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `_go_on_from`."""
        _go_on_from(self, state_dict)

    def get_lr(self) -> list[float | Tensor]:
        """Rates of the groups at the current step."""
        groups = self.optimizer.param_groups
        return [self._group_lr(group, float(base_lr)) for group, base_lr in zip(groups, self.base_lrs)]

    def _group_lr(self, group: dict, base_lr: float) -> float:
        """Rate of a group, on the schedule's whole course squeezed between its `start_step` and `end_step` if any."""
        start, end = group.get('start_step', 0), group.get('end_step', self.max_steps)
        if self.last_epoch < start:
            return 0.0
        if (start, end) == (0, self.max_steps):
            return self.lr_at(self.last_epoch, base_lr)
        own = copy.copy(self)
        own.max_steps = None if end is None else end - start
        return own.lr_at(self.last_epoch - start, base_lr)

    def lr_at(self, step: int, base_lr: float) -> float:
        """Rate of a group with `base_lr` at optimizer step `step`."""
        if step <= self.constant_steps:
            return self.constant_steps**-0.5
        if self.max_steps is not None and step > self.max_steps:
            return self.min_lr
        return self.anneal(step, base_lr)

    def anneal(self, step: int, base_lr: float) -> float:
        """Rate after the constant part."""
        return base_lr


class T5InverseSquareRootAnnealing(SquareRootConstantPolicy):
    """Constant, then `step^-0.5` (T5, Raffel et al. 2020)."""

    def __init__(self, optimizer: Optimizer, *, max_steps: int, **kwargs):
        super().__init__(optimizer, max_steps=max_steps, **kwargs)

    def anneal(self, step: int, base_lr: float) -> float:
        return step**-0.5


def _steps(what: str, steps: int | None, ratio: float | None, max_steps: int | None) -> int:
    if steps is not None and ratio is not None:
        raise ConfigError(f'{what}_steps and {what}_ratio exclude each other; remove one.')
    if ratio is None:
        return steps or 0
    if max_steps is None:
        raise ConfigError(f'{what}_ratio is a share of max_steps, which is not set.')
    return int(ratio * max_steps)


def _polynomial(done: float, base_lr: float, min_lr: float, power: float) -> float:
    return min_lr + (base_lr - min_lr) * (1.0 - done) ** power


def _check_floor(scheduler: WarmupPolicy) -> None:
    lowest = min(map(float, scheduler.base_lrs))
    if lowest < scheduler.min_lr:
        raise ConfigError(f'{type(scheduler).__name__}: the base rate {lowest} is under min_lr {scheduler.min_lr}.')


_COMMON = frozenset({'warmup_steps', 'warmup_ratio', 'max_steps', 'min_lr', 'last_epoch'})


def _check_names(scheduler: LRScheduler, kwargs: dict) -> None:
    unknown = set(kwargs) - _COMMON
    if unknown:
        raise ConfigError(
            f"{type(scheduler).__name__} takes no {', '.join(sorted(unknown))}; it takes {', '.join(sorted(_COMMON))}."
        )
