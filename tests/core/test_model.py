import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from nemo_speech.core import instantiate as instantiate_module
from nemo_speech.core.errors import CheckpointError, ConfigError
from nemo_speech.core.instantiate import register_target
from nemo_speech.core.model import ModelConfig, ModelPT

GPUS = torch.cuda.device_count()


@dataclass(kw_only=True)
class TinyConfig(ModelConfig):
    width: int = 2


class Tiny(ModelPT):
    """Two tied layers and a buffer: enough for every way weights are stored."""

    config_class = TinyConfig

    def __init__(self, cfg):
        super().__init__(cfg)
        self.first = nn.Linear(self.cfg.width, self.cfg.width)
        self.second = nn.Linear(self.cfg.width, self.cfg.width, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(self.cfg.width)

    def nemo_artifacts(self):
        return {}


class Other(Tiny):
    """A model that no `Tiny` subclass check should mistake for its sibling."""


class Sibling(Tiny):
    """See `Other`."""


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(instantiate_module, '_registered', set())
    for cls in (Tiny, Other, Sibling):
        register_target(f'{cls.__module__}.{cls.__qualname__}')


def tiny(**cfg) -> Tiny:
    torch.manual_seed(0)
    model = Tiny({'width': 3, **cfg})
    model.norm.running_mean.fill_(2.0)
    return model


def assert_equal(one: nn.Module, two: nn.Module) -> None:
    assert one.state_dict().keys() == two.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values()))


def test_config_is_checked():
    with pytest.raises(ConfigError, match=r"model.widht: unknown key. Did you mean 'width'\?"):
        Tiny({'widht': 3})


def test_save_to_and_restore_from(tmp_path, registered):
    model = tiny(optimizer={'name': 'sgd', 'lr': 0.1})
    model.save_to(tmp_path / 'm.nemo')
    again = Tiny.restore_from(tmp_path / 'm.nemo')
    assert_equal(model, again)
    assert again.cfg == model.cfg and not again.training
    assert Tiny.restore_from(tmp_path / 'm.nemo', return_config=True)['target'].endswith('test_model.Tiny')


def test_restore_from_takes_overrides(tmp_path, registered):
    tiny().save_to(tmp_path / 'm.nemo')
    assert Tiny.restore_from(tmp_path / 'm.nemo', override_config={'optimizer': {'name': 'sgd'}}).cfg.optimizer == {
        'name': 'sgd'
    }
    with pytest.raises(CheckpointError, match=r'first.weight \[3, 3\] instead of \[4, 4\]'):
        Tiny.restore_from(tmp_path / 'm.nemo', override_config={'width': 4}, strict=False)


def test_restore_from_builds_the_class_that_was_saved_and_no_other(tmp_path, registered):
    Other({'width': 2}).save_to(tmp_path / 'm.nemo')
    assert type(Tiny.restore_from(tmp_path / 'm.nemo')) is Other
    with pytest.raises(CheckpointError, match='holds a Other, which is no Sibling'):
        Sibling.restore_from(tmp_path / 'm.nemo')


def test_restore_from_refuses_a_class_that_nobody_allowed(tmp_path):
    Other({'width': 2}).save_to(tmp_path / 'm.nemo')
    with pytest.raises(CheckpointError, match='m.nemo: target: .* is not allowed'):
        Tiny.restore_from(tmp_path / 'm.nemo')
    assert type(Other.restore_from(tmp_path / 'm.nemo')) is Other


def test_restore_from_names_a_removed_nemo_model(tmp_path, registered, monkeypatch):
    model = tiny()
    monkeypatch.setattr(model, 'nemo_config', lambda: {'target': 'nemo.collections.tts.models.VitsModel', 'width': 3})
    model.save_to(tmp_path / 'm.nemo')
    with pytest.raises(CheckpointError, match="VitsModel' was removed from NeMo"):
        Tiny.restore_from(tmp_path / 'm.nemo')


def test_save_pretrained_and_from_pretrained(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ['config.json', 'model.safetensors']
    assert json.loads((tmp_path / 'config.json').read_text())['architectures'] == ['Tiny']
    again = Tiny.from_pretrained(tmp_path)
    assert_equal(model, again)
    assert again.second.weight is again.first.weight and not again.training


@pytest.mark.parametrize('strict', [True, False])
def test_from_pretrained_with_a_tensor_missing(tmp_path, strict):
    from safetensors.torch import save_file

    tiny().save_pretrained(tmp_path)
    weights = load_file(tmp_path / 'model.safetensors')
    weights['extra'] = weights.pop('first.bias')
    save_file(weights, tmp_path / 'model.safetensors')
    if not strict:
        assert Tiny.from_pretrained(tmp_path, strict=False).norm.running_mean.tolist() == [2.0, 2.0, 2.0]
        return
    with pytest.raises(CheckpointError, match='does not fit Tiny: 1 missing: first.bias; 1 unexpected: extra'):
        Tiny.from_pretrained(tmp_path)


def test_from_pretrained_names_what_is_wrong(tmp_path):
    with pytest.raises(CheckpointError, match='no config.json in it'):
        Tiny.from_pretrained(tmp_path)
    (tmp_path / 'config.json').write_text('{"width": 3, "widht": 3}')
    with pytest.raises(ConfigError, match='config.json: widht: unknown key'):
        Tiny.from_pretrained(tmp_path)
    (tmp_path / 'config.json').write_text('{"width": 3}')
    with pytest.raises(CheckpointError, match='no model.safetensors'):
        Tiny.from_pretrained(tmp_path)
    (tmp_path / 'model.safetensors').write_bytes(b'junk' * 99)
    with pytest.raises(CheckpointError, match='model.safetensors is damaged'):
        Tiny.from_pretrained(tmp_path)
    (tmp_path / 'config.json').write_text('{')
    with pytest.raises(CheckpointError, match='config.json: not valid JSON'):
        Tiny.from_pretrained(tmp_path)
    (tmp_path / 'model.safetensors.index.json').write_text('{"weight_map": {"a": "../x.safetensors"}}')
    (tmp_path / 'config.json').write_text('{"width": 3}')
    with pytest.raises(CheckpointError, match='no ../x.safetensors in it'):
        Tiny.from_pretrained(tmp_path)


def test_devices_and_places_that_are_not_there_are_named(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path / 'm')
    model.save_to(tmp_path / 'm.nemo')
    for load, path in ((Tiny.from_pretrained, tmp_path / 'm'), (Tiny.restore_from, tmp_path / 'm.nemo')):
        with pytest.raises(ConfigError, match="device 'gpu' is not known"):
            load(path, map_location='gpu')
        with pytest.raises(ConfigError, match=f'cuda:{GPUS}. was asked for, and {GPUS} GPUs are usable'):
            load(path, map_location=f'cuda:{GPUS}')
    with pytest.raises(CheckpointError, match='m.nemo/m cannot be made .*; name another place'):
        model.save_pretrained(tmp_path / 'm.nemo' / 'm')


def resumed(cfg: dict, **checkpoint) -> None:
    """A model of `cfg` meets a checkpoint of `tiny()` trained by AdamW, as a trainer that resumes it hands it over."""
    model = tiny(**cfg)
    model.freeze_parameters()
    model._trainer = SimpleNamespace(ckpt_path='a-last.ckpt', training=True)
    before = tiny(optimizer={'name': 'adamw', 'lr': 1e-3})
    state = before.configure_optimizers()['optimizer'].state_dict()
    hyper_parameters = {'cfg': {'optimizer': before.cfg.optimizer}}
    values = {'state_dict': before.state_dict(), 'optimizer_states': [state], 'hyper_parameters': hyper_parameters}
    model.on_load_checkpoint({**values, **checkpoint})


@pytest.mark.parametrize(
    'cfg, message',
    [
        (
            {'width': 4},
            r'a-last.ckpt does not fit Tiny: .* of another shape: first.weight \[3, 3\] instead of \[4, 4\]',
        ),
        ({'optimizer': {'_target_': 'torch.optim.SGD', 'lr': 0.1}}, 'trained with AdamW, model.optimizer is SGD'),
        (
            {'optimizer': {'name': 'adamw'}, 'freeze_params': ['norm']},
            'trained 4 tensors, this configuration trains 2',
        ),
    ],
    ids=['tensors', 'optimizer', 'frozen'],
)
def test_a_run_that_cannot_go_on_says_why_and_what_to_do(cfg, message):
    with pytest.raises(CheckpointError, match=f'{message}.*Undo the change of the configuration'):
        resumed(cfg)


def test_a_run_goes_on_with_the_same_optimizer_under_another_name_or_rate():
    resumed({'optimizer': {'_target_': 'torch.optim.AdamW', 'lr': 5e-4}})


def test_configure_optimizers_takes_trainable_parameters_in_groups():
    model = tiny(
        optimizer={'_target_': 'torch.optim.AdamW', 'lr': 0.1},
        lr_scheduler={'name': 'CosineAnnealing', 'max_steps': 10},
        optim_param_groups=[{'params': 'norm', 'lr': 0.01}],
        freeze_params=['first.bias'],
    )
    model.freeze_parameters()
    configured = model.configure_optimizers()
    groups = configured['optimizer'].param_groups
    assert [len(g['params']) for g in groups] == [2, 1]
    assert [g['lr'] for g in groups] == [0.01, 0.1]
    assert configured['lr_scheduler']['interval'] == 'step' and configured['lr_scheduler']['scheduler'].max_steps == 10


@pytest.mark.parametrize(
    'cfg, message',
    [
        ({}, 'model.optimizer: missing'),
        ({'optimizer': {'name': 'sgd'}, 'freeze_params': ['.*']}, 'no parameter is trainable'),
        (
            {'optimizer': {'name': 'sgd'}, 'optim_param_groups': [{'params': 'x'}]},
            r'model.optim_param_groups\[0\].params',
        ),
        (
            {'optimizer': {'name': 'sgd'}, 'lr_scheduler': {'name': 'CosineAnnealing'}},
            'model.lr_scheduler: .*max_steps',
        ),
    ],
)
def test_configure_optimizers_names_the_fault(cfg, message):
    model = tiny(**cfg)
    model.freeze_parameters()
    with pytest.raises(ConfigError, match=message):
        model.configure_optimizers()


def test_freeze_parameters_warns_of_patterns_without_a_match(capfd):
    tiny(freeze_params=['nothing']).freeze_parameters()
    assert 'Patterns that match nothing: nothing' in capfd.readouterr().err
