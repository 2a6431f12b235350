import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nemo_speech.core import schedulers
from nemo_speech.core.errors import ConfigError

_GOLDEN = np.load(Path(__file__).parent / 'data' / 'nemo_schedules.npz')
_CASES = json.loads(str(_GOLDEN['cases']))
# NeMo gives every parameter group the first one's rate in these two; ours each its own.
_FIRST_GROUP_ONLY = {'WarmupAnnealing'}


def optimizer(*lrs: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{'params': [torch.nn.Parameter(torch.zeros(1))], 'lr': lr} for lr in lrs], lr=1.0)


def curve(name: str, kwargs: dict, *lrs: float, steps: int = 200) -> np.ndarray:
    """Rates `[steps, groups]`."""
    opt = optimizer(*lrs)
    schedule = getattr(schedulers, name)(opt, **kwargs)
    rates = []
    for _ in range(steps):
        rates.append([group['lr'] for group in opt.param_groups])
        opt.step()
        schedule.step()
    return np.array(rates)


@pytest.mark.parametrize('row', range(len(_CASES)), ids=[f'{name}-{i}' for i, (name, _) in enumerate(_CASES)])
def test_curve_equals_nemos(row):
    """200 steps recorded from nemo_toolkit 3.0.0, base rates 1e-2 and 3e-3; float64 on both sides."""
    name, kwargs = _CASES[row]
    rates = curve(name, kwargs, 1e-2, 3e-3)
    np.testing.assert_allclose(rates[:, 0], _GOLDEN['lrs'][row], rtol=1e-9, atol=0)
    constant_tail = name == 'CosineAnnealing' and {'constant_steps', 'constant_ratio'} & set(kwargs)
    if name not in _FIRST_GROUP_ONLY and not constant_tail:
        np.testing.assert_allclose(rates[:, 1], _GOLDEN['lrs_small'][row], rtol=1e-9, atol=0)


@pytest.mark.parametrize('kwargs', [{'max_steps': 50, 'warmup_steps': 5}, {'max_steps': 50, 'constant_steps': 5}])
@pytest.mark.parametrize('name', ['CosineAnnealing', 'WarmupAnnealing'])
def test_groups_keep_the_ratio_of_their_rates(name, kwargs):
    if name == 'WarmupAnnealing':
        kwargs = {k: v for k, v in kwargs.items() if k != 'constant_steps'}
    rates = curve(name, kwargs, 1e-2, 5e-3, steps=60)
    np.testing.assert_allclose(rates[:, 1] * 2, rates[:, 0], rtol=1e-12)


def test_t5_schedule_takes_a_ratio():
    by_ratio = curve('T5InverseSquareRootAnnealing', {'constant_ratio': 0.2, 'max_steps': 50}, 1e-2, steps=60)
    by_steps = curve('T5InverseSquareRootAnnealing', {'constant_steps': 10, 'max_steps': 50}, 1e-2, steps=60)
    np.testing.assert_array_equal(by_ratio, by_steps)


@given(
    st.sampled_from(
        ['SquareAnnealing', 'SquareRootAnnealing', 'CosineAnnealing', 'WarmupAnnealing', 'PolynomialDecayAnnealing']
    ),
    st.integers(0, 30),
    st.integers(1, 60),
    st.floats(1e-6, 1e-3),
)
def test_annealing_falls_after_its_warmup_and_stays_in_range(name, warmup, extra, min_lr):
    max_steps = warmup + extra
    schedule = getattr(schedulers, name)(optimizer(1e-2), warmup_steps=warmup, max_steps=max_steps, min_lr=min_lr)
    rates = [schedule.lr_at(step, 1e-2) for step in range(max_steps + 5)]
    assert all(0 < rate <= 1e-2 + 1e-12 for rate in rates)
    assert all(b <= a + 1e-12 for a, b in zip(rates[warmup:], rates[warmup + 1 :]))
    assert rates[-1] == min_lr


@pytest.mark.parametrize('name, kwargs', [c for c in _CASES if 'warmup_steps' in c[1]][::4])
def test_state_dict_continues_the_curve(name, kwargs):
    whole = curve(name, kwargs, 1e-2, steps=60)
    opt = optimizer(1e-2)
    first = getattr(schedulers, name)(opt, **kwargs)
    for _ in range(25):
        opt.step()
        first.step()
    resumed_opt = optimizer(1e-2)
    resumed = getattr(schedulers, name)(resumed_opt, **kwargs)
    resumed_opt.load_state_dict(opt.state_dict())
    resumed.load_state_dict(first.state_dict())
    rest = []
    for _ in range(35):
        rest.append(resumed_opt.param_groups[0]['lr'])
        resumed_opt.step()
        resumed.step()
    np.testing.assert_allclose(rest, whole[25:, 0], rtol=1e-12)


@pytest.mark.parametrize(
    'name, kwargs, message',
    [
        (
            'CosineAnnealing',
            {'max_steps': 5, 'min_lr': 1.0},
            r'CosineAnnealing: the base rate 0.01 is under min_lr 1.0',
        ),
        ('CosineAnnealing', {'max_steps': 5, 'warmup_steps': 1, 'warmup_ratio': 0.1}, 'exclude each other'),
        ('CosineAnnealing', {'max_steps': 5, 'warmup': 1}, 'CosineAnnealing takes no warmup; it takes'),
        ('WarmupPolicy', {'warmup_ratio': 0.1}, 'warmup_ratio is a share of max_steps, which is not set'),
        ('SquareRootConstantPolicy', {'max_steps': 5}, 'set constant_steps or constant_ratio'),
    ],
)
def test_wrong_arguments_are_named(name, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        getattr(schedulers, name)(optimizer(1e-2), **kwargs)


def test_noam_hold_annealing_needs_a_warmup():
    with pytest.raises(ConfigError, match='NoamHoldAnnealing: set warmup_steps'):
        curve('NoamHoldAnnealing', {'max_steps': 5}, 1e-2, steps=3)


def test_group_with_its_own_start_and_end_runs_the_whole_course_between_them():
    late = torch.nn.Parameter(torch.zeros(1))
    early = torch.nn.Parameter(torch.zeros(1))
    groups = [{'params': [early]}, {'params': [late], 'lr': 0.5, 'start_step': 5, 'end_step': 9}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    schedule = schedulers.CosineAnnealing(optimizer, warmup_steps=1, max_steps=20)
    rates = []
    for _ in range(12):
        rates.append([group['lr'] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    alone = schedulers.CosineAnnealing(torch.optim.SGD([late], lr=0.5), warmup_steps=1, max_steps=4)
    assert [late_rate for _, late_rate in rates] == pytest.approx([0.0] * 5 + [alone.lr_at(i, 0.5) for i in range(7)])
    assert [rate for rate, _ in rates] == pytest.approx([schedule.lr_at(i, 1.0) for i in range(12)])


def take_steps(opt: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(opt.param_groups[0]['lr'])
        opt.step()
        schedule.step()
    return rates


@pytest.mark.parametrize('name', ['CosineAnnealing', 'SquareAnnealing', 'PolynomialDecayAnnealing'])
def test_longer_run_goes_on_along_the_longer_curve(name, caplog):
    runs = []
    for max_steps in (4, 12, 12):
        opt = optimizer(1e-2)
        runs.append((opt, getattr(schedulers, name)(opt, warmup_steps=2, max_steps=max_steps, min_lr=1e-6)))
    short, resumed, straight = runs
    take_steps(*short, 4)
    resumed[0].load_state_dict(short[0].state_dict())
    with caplog.at_level('WARNING', logger='nemo_speech'):
        resumed[1].load_state_dict(short[1].state_dict())
    assert 'max_steps 4 -> 12' in caplog.text
    assert take_steps(*resumed, 8) == take_steps(*straight, 12)[4:]
