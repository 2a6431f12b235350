"""Optimizers and schedules from config: `{_target_: torch.optim.AdamW, lr: 1e-3}` or NeMo's `{name: adamw}`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nemo_speech.core import schedulers
from nemo_speech.core.errors import ConfigError
from nemo_speech.core.instantiate import build_object, instantiate, resolve_target
from nemo_speech.core.novel_optimizers import Adan, Novograd
from nemo_speech.utils.suggest import did_you_mean

__all__ = ['Adan', 'Novograd', 'OPTIMIZERS', 'SCHEDULERS', 'build_optimizer', 'build_scheduler', 'group_parameters']

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    'sgd': torch.optim.SGD,
    'adam': torch.optim.Adam,
    'adamw': torch.optim.AdamW,
    'adadelta': torch.optim.Adadelta,
    'adamax': torch.optim.Adamax,
    'adagrad': torch.optim.Adagrad,
    'rmsprop': torch.optim.RMSprop,
    'rprop': torch.optim.Rprop,
    'adafactor': torch.optim.Adafactor,
    'novograd': Novograd,
    'adan': Adan,
}
SCHEDULERS: dict[str, type] = {
    **{
        name: schedule
        for name, schedule in vars(schedulers).items()
        if isinstance(schedule, type) and schedule.__module__ == schedulers.__name__
    },
    'StepLR': torch.optim.lr_scheduler.StepLR,
    'ExponentialLR': torch.optim.lr_scheduler.ExponentialLR,
    'ReduceLROnPlateau': torch.optim.lr_scheduler.ReduceLROnPlateau,
    'CyclicLR': torch.optim.lr_scheduler.CyclicLR,
}
# How Lightning calls the schedule; not arguments of the schedule.
_CALLING_KEYS = ('interval', 'frequency', 'monitor')


def build_optimizer(cfg: Mapping[str, Any], params: Any, *, path: str = 'optimizer') -> torch.optim.Optimizer:
    """Build the optimizer over `params` (tensors or parameter groups).

    Raises:
        ConfigError: Unknown name or argument.
    """
    return _build(cfg, OPTIMIZERS, torch.optim.Optimizer, path, params=params)


def optimizer_class(cfg: Mapping[str, Any], *, path: str = 'optimizer') -> type[torch.optim.Optimizer]:
    """The class that `build_optimizer` would build.

    Raises:
        ConfigError: Unknown name.
    """
    return _class_of(cfg, OPTIMIZERS, path)


def build_scheduler(
    cfg: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    *,
    max_steps: int | None = None,
    path: str = 'lr_scheduler',
) -> dict[str, Any]:
    """Build a schedule and Lightning's description of it, `{scheduler, interval, frequency[, monitor]}`.

    Args:
        cfg: `_target_` or `name`, the schedule's arguments, and optionally `interval`, `frequency`, `monitor`.
        optimizer: What it drives.
        max_steps: Used where the schedule needs `max_steps` and `cfg` leaves it out.

    Raises:
        ConfigError: Unknown name or argument; `ReduceLROnPlateau` without `monitor`; `max_steps` known from nowhere.
    """
    calling = {key: cfg[key] for key in _CALLING_KEYS if key in cfg}
    arguments = {key: value for key, value in cfg.items() if key not in _CALLING_KEYS}
    ours = _class_of(arguments, SCHEDULERS, path).__module__ == schedulers.__name__
    if ours and arguments.get('max_steps') is None:
        arguments.pop('max_steps', None)
        if max_steps is not None:
            arguments['max_steps'] = max_steps
    elif ours and arguments['max_steps'] < 1:
        raise ConfigError(
            f"{path}.max_steps: {arguments['max_steps']} steps leave nothing to schedule; set trainer.max_steps."
        )
    scheduler = _build(arguments, SCHEDULERS, object, path, optimizer=optimizer)
    on_plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    if on_plateau and 'monitor' not in calling:
        raise ConfigError(f"{path}: ReduceLROnPlateau needs 'monitor', the metric it watches (such as val_loss).")
    return {'scheduler': scheduler, 'interval': 'epoch' if on_plateau else 'step', 'frequency': 1, **calling}


def group_parameters(
    named: Iterable[tuple[str, nn.Parameter]],
    groups: Sequence[Mapping[str, Any]] = (),
    *,
    path: str = 'optim_param_groups',
) -> list[dict[str, Any]]:
    """Split the trainable parameters into optimizer groups.

    Args:
        named: All parameters by name; frozen ones are left out.
        groups: Each `{params: regex or list of them, **options}` with options such as `lr` and `weight_decay`; a
            parameter belongs to the first group that matches it from the start of its name, and to a last group
            without options if none does.
        path: Where `groups` stands, for messages.

    Raises:
        ConfigError: Nothing trains; a pattern matches no trainable parameter; a group has no `params`.
    """
    named = list(named)
    trainable = [(name, p) for name, p in named if p.requires_grad]
    if not trainable:
        raise ConfigError('no parameter is trainable; relax freeze_params or name some in prevent_freeze_params.')
    patterns = [_patterns(group, f'{path}[{i}]') for i, group in enumerate(groups)]
    members: list[list[nn.Parameter]] = [[] for _ in range(len(groups) + 1)]
    for name, parameter in trainable:
        first = next((i for i, rules in enumerate(patterns) if any(rule.match(name) for rule in rules)), len(groups))
        members[first].append(parameter)
    for i, rules in enumerate(patterns):
        for rule in rules:
            _check_used(rule, named, f'{path}[{i}].params')
    options = [{k: v for k, v in group.items() if k != 'params'} for group in groups] + [{}]
    return [{'params': params, **extra} for params, extra in zip(members, options) if params]


def _build(cfg: Mapping[str, Any], table: Mapping[str, type], expected: type, path: str, **given: Any) -> Any:
    if '_target_' in cfg:
        return instantiate(cfg, path=path, expected_type=expected, **given)
    target = _by_name(cfg, table, path)
    return build_object(target, {**{k: v for k, v in cfg.items() if k != 'name'}, **given}, path=path)


def _by_name(cfg: Mapping[str, Any], table: Mapping[str, type], path: str) -> type:
    if 'name' not in cfg:
        raise ConfigError(f"{path}: needs '_target_' (a class) or 'name' (one of {', '.join(table)}).")
    if cfg['name'] not in table:
        raise ConfigError(
            f"{path}.name: '{cfg['name']}' is unknown. {did_you_mean(str(cfg['name']), table, shown=30)}"
        )
    return table[cfg['name']]


def _class_of(cfg: Mapping[str, Any], table: Mapping[str, type], path: str) -> type:
    return resolve_target(cfg['_target_'], path=path) if '_target_' in cfg else _by_name(cfg, table, path)


def _patterns(group: Mapping[str, Any], path: str) -> list[re.Pattern[str]]:
    if 'params' not in group:
        raise ConfigError(f"{path}: needs 'params', a regular expression over parameter names.")
    given = group['params']
    try:
        return [re.compile(p) for p in ([given] if isinstance(given, str) else given)]
    except re.error as err:
        raise ConfigError(f'{path}.params: {given!r} is not a regular expression: {err}.') from err


def _check_used(rule: re.Pattern[str], named: Sequence[tuple[str, nn.Parameter]], path: str) -> None:
    matching = [(name, p) for name, p in named if rule.match(name)]
    if not matching:
        raise ConfigError(
            f"{path}: '{rule.pattern}' matches no parameter. {did_you_mean(rule.pattern, dict(named), shown=5)}"
        )
    if not any(p.requires_grad for _, p in matching):
        raise ConfigError(f"{path}: '{rule.pattern}' matches frozen parameters only ({matching[0][0]}, ...).")
