import pytest
import torch

from nemo_speech.core.errors import ConfigError
from nemo_speech.core.novel_optimizers import Adan, Novograd
from nemo_speech.core.optim import OPTIMIZERS, build_optimizer, build_scheduler, group_parameters

# First row of the first tensor after 6 steps of `fitted`, recorded from nemo_toolkit 3.0.0.
_NEMO = [
    (Novograd, {}, [-0.9299056367395423, -0.49356403851141534, -0.057222440283288704]),
    (
        Novograd,
        {'betas': (0.8, 0.5), 'weight_decay': 0.1},
        [-0.9344099132002103, -0.5144779102870998, -0.09454590737398931],
    ),
    (
        Novograd,
        {'betas': (0.8, 0.5), 'weight_decay': 0.1, 'grad_averaging': True},
        [-0.986664170099271, -0.5827063433036431, -0.17874851650801524],
    ),
    (Novograd, {'amsgrad': True}, [-0.9299054809120104, -0.49356396964516436, -0.057222458378318505]),
    (Adan, {}, [-0.9417527714200536, -0.541794901134092, -0.14182395545177232]),
    (Adan, {'weight_decay': 0.1}, [-0.935956265164539, -0.5383898604736481, -0.14081054956922662]),
    (Adan, {'weight_decay': 0.1, 'no_prox': True}, [-0.9358921023917378, -0.538328167691243, -0.14075130278225587]),
    (Adan, {'max_grad_norm': 0.5}, [-0.9412082922129311, -0.5412264055687963, -0.1412349718780564]),
]


def fitted(optimizer_class, **kwargs) -> list[torch.Tensor]:
    weights = [torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3), torch.linspace(1, 2, 3, dtype=torch.float64)]
    params = [torch.nn.Parameter(w) for w in weights]
    optimizer = optimizer_class(params, lr=1e-2, **kwargs)
    for i in range(6):
        optimizer.zero_grad()
        ((params[0] * params[1]).sum(1) - i).pow(2).sum().backward()
        optimizer.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize('optimizer_class, kwargs, wanted', _NEMO)
def test_novograd_and_adan_equal_nemos(optimizer_class, kwargs, wanted):
    """NeMo keeps some state in float32, hence 1e-8."""
    got = fitted(optimizer_class, **kwargs)[0][0]
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-8)


@pytest.mark.parametrize('name', sorted(OPTIMIZERS))
def test_build_optimizer_by_nemos_name_takes_a_step(name):
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = build_optimizer({'name': name, 'lr': 0.1}, [parameter])
    parameter.pow(2).sum().backward()
    optimizer.step()
    assert type(optimizer) is OPTIMIZERS[name] and not torch.equal(parameter, torch.ones(2, 2))


@pytest.mark.parametrize(
    'cfg, message',
    [
        ({'name': 'adamv'}, r"model.optimizer.name: 'adamv' is unknown. Did you mean 'adam"),
        ({'lr': 1}, "model.optimizer: needs '_target_'"),
        ({'name': 'adamw', 'lrr': 1}, r"model.optimizer.lrr: AdamW takes no such argument. Did you mean 'lr'\?"),
        ({'_target_': 'torch.nn.Linear'}, 'is no Optimizer'),
        ({'name': 'novograd', 'lr': -1.0}, 'model.optimizer: Novograd: lr -1.0'),
        ({'name': 'adan', 'betas': [0.9, 0.9, 1.0]}, r'must lie in \[0, 1\)'),
    ],
)
def test_build_optimizer_names_path_and_fault(cfg, message):
    with pytest.raises(ConfigError, match=message):
        build_optimizer(cfg, [torch.nn.Parameter(torch.ones(1))], path='model.optimizer')


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


@pytest.mark.parametrize(
    'cfg, kind, interval',
    [
        ({'_target_': 'nemo.core.optim.lr_scheduler.CosineAnnealing', 'warmup_steps': 2}, 'CosineAnnealing', 'step'),
        ({'name': 'CosineAnnealing', 'max_steps': None}, 'CosineAnnealing', 'step'),
        ({'name': 'NoamAnnealing', 'd_model': 4}, 'NoamAnnealing', 'step'),
        ({'_target_': 'torch.optim.lr_scheduler.StepLR', 'step_size': 3, 'interval': 'epoch'}, 'StepLR', 'epoch'),
        ({'name': 'ReduceLROnPlateau', 'monitor': 'val_loss'}, 'ReduceLROnPlateau', 'epoch'),
    ],
)
def test_build_scheduler(cfg, kind, interval):
    built = build_scheduler(cfg, sgd(), max_steps=10)
    assert type(built['scheduler']).__name__ == kind and built['interval'] == interval
    if kind == 'CosineAnnealing':
        assert built['scheduler'].max_steps == 10


@pytest.mark.parametrize(
    'cfg, message',
    [
        ({'name': 'CosineAnealing'}, r"Did you mean 'CosineAnnealing'\?"),
        ({'name': 'CosineAnnealing'}, 'CosineAnnealing also needs max_steps'),
        ({'name': 'CosineAnnealing', 'max_steps': -1}, 'set trainer.max_steps'),
        ({'name': 'CosineAnnealing', 'max_steps': 5, 'warm_steps': 1}, 'takes no warm_steps'),
        ({'name': 'ReduceLROnPlateau'}, "needs 'monitor'"),
        ({'name': 'StepLR'}, 'StepLR also needs step_size'),
    ],
)
def test_build_scheduler_names_the_fault(cfg, message):
    with pytest.raises(ConfigError, match=message):
        build_scheduler(cfg, sgd())


def named() -> dict[str, torch.nn.Parameter]:
    names = ['encoder.a', 'encoder.b', 'decoder.a', 'frozen.a']
    return {n: torch.nn.Parameter(torch.ones(1), requires_grad=not n.startswith('frozen')) for n in names}


def test_group_parameters_first_match_wins_and_the_rest_follows():
    params = named()
    groups = group_parameters(
        params.items(), [{'params': r'.*\.a$', 'lr': 0.1}, {'params': ['encoder'], 'weight_decay': 0.0}]
    )
    assert groups == [
        {'params': [params['encoder.a'], params['decoder.a']], 'lr': 0.1},
        {'params': [params['encoder.b']], 'weight_decay': 0.0},
    ]
    assert group_parameters(params.items()) == [{'params': [p for n, p in params.items() if n != 'frozen.a']}]


@pytest.mark.parametrize(
    'groups, message',
    [
        ([{'params': 'encodr'}], r"optim_param_groups\[0\].params: 'encodr' matches no parameter"),
        (
            [{'params': 'encoder'}, {'params': ['decoder', 'frozen']}],
            r"\[1\].params: 'frozen' matches frozen parameters only",
        ),
        ([{'lr': 1}], r"optim_param_groups\[0\]: needs 'params'"),
        ([{'params': '['}], 'is not a regular expression'),
    ],
)
def test_group_parameters_names_the_fault(groups, message):
    with pytest.raises(ConfigError, match=message):
        group_parameters(named().items(), groups)


def test_group_parameters_of_a_frozen_model():
    with pytest.raises(ConfigError, match='no parameter is trainable'):
        group_parameters([('a', torch.nn.Parameter(torch.ones(1), requires_grad=False))])
