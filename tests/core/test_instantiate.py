import pytest
import torch

from nemo_speech.core import instantiate as module
from nemo_speech.core.errors import ConfigError
from nemo_speech.core.instantiate import instantiate, register_target, resolve_target
from nemo_speech.core.targets import NEMO_TARGETS, to_nemo_target


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(module, '_registered', set())


@pytest.mark.parametrize(
    'name',
    [
        'torch.optim.AdamW',
        'torch.optim.lr_scheduler.StepLR',
        'torch.nn.Linear',
        'lightning.pytorch.strategies.DDPStrategy',
        'lightning.pytorch.callbacks.LearningRateMonitor',
        'lightning.pytorch.loggers.CSVLogger',
        'nemo_speech.core.schedulers.CosineAnnealing',
        'nemo.core.optim.lr_scheduler.CosineAnnealing',
        'nemo.core.optim.novograd.Novograd',
        'nemo.core.optim.adan.Adan',
    ],
)
def test_resolve_target_finds_allowed_classes(name):
    assert isinstance(resolve_target(name), type)


@pytest.mark.parametrize(
    'name, message',
    [
        ('os.system', 'is not allowed'),
        ('builtins.eval', 'is not allowed'),
        ('subprocess.Popen', 'is not allowed'),
        ('torch.hub.load', 'is not allowed'),
        ('torch.load', 'is not allowed'),
        ('nemo_speech.core.archive.tarfile.TarFile', 'goes through something that is no package'),
        ('nemo_speech.core.archive.Path', 'leads to pathlib'),
        ('nemo_speech.core.instantiate.importlib.import_module', 'goes through something'),
        ('nemo_speech.core.archive.read_nemo', 'only classes may be built'),
        ('torch.nn.init.normal_', 'only classes may be built'),
        ('torch.nn.Module.forward', 'only classes may be built'),
        ('torch.nn.Module.__init__', 'is not a dotted class name'),
        ('torch.nn.Module.__subclasses__', 'is not a dotted class name'),
        ('torch.nn._reduction', 'is not a dotted class name'),
        ('AdamW', 'is not a dotted class name'),
        ('', 'is not a dotted class name'),
        ('torch.nn.Linear; import os', 'is not a dotted class name'),
        ('torch.optim.AdamV', "torch.optim has no 'AdamV'. Did you mean 'Adam"),
        ('nemo.collections.tts.models.VitsModel', 'was removed from NeMo before 3.0.0'),
        ('nemo.collections.nlp.models.X', 'was removed from NeMo before 3.0.0'),
        (
            'nemo.collections.asr.modules.ConformerEncodr',
            "Did you mean 'nemo.collections.asr.modules.ConformerEncoder'",
        ),
        ('nemo.utils.exp_manager.exp_manager', 'has no counterpart'),
    ],
)
def test_resolve_target_refuses(name, message):
    with pytest.raises(ConfigError, match='model.x: .*' + message):
        resolve_target(name, path='model.x')


def test_resolve_target_refuses_what_is_no_text():
    with pytest.raises(ConfigError, match='is not a dotted class name'):
        resolve_target(['os.system'])


def test_register_target_allows_a_class_and_a_package(own_registry):
    for name in ('fractions.Fraction', 'decimal.Decimal'):
        with pytest.raises(ConfigError, match='register_target'):
            resolve_target(name)
    register_target('fractions.Fraction')
    register_target('decimal.')
    assert resolve_target('fractions.Fraction').__name__ == 'Fraction'
    assert resolve_target('decimal.Decimal').__name__ == 'Decimal'


def test_register_target_of_a_package_allows_no_other_package_through_it(own_registry):
    register_target('decimal.')
    register_target('json.')
    with pytest.raises(ConfigError, match='goes through something|leads to'):
        resolve_target('json.decoder.scanner.NUMBER_RE')
    with pytest.raises(ConfigError):
        register_target('os; x')


def test_instantiate_builds_with_overrides_and_numbers_written_as_text():
    parameter = torch.nn.Parameter(torch.zeros(1))
    cfg = {'_target_': 'torch.optim.AdamW', 'lr': '3e-4', 'betas': [0.9, 0.98]}
    optimizer = instantiate(cfg, path='model.optimizer', params=[parameter])
    assert optimizer.defaults['lr'] == 3e-4 and tuple(optimizer.defaults['betas']) == (0.9, 0.98)
    assert cfg == {'_target_': 'torch.optim.AdamW', 'lr': '3e-4', 'betas': [0.9, 0.98]}


def test_instantiate_builds_nested_targets():
    layer = {'_target_': 'torch.nn.TransformerEncoderLayer', 'd_model': 8, 'nhead': 2, 'dim_feedforward': 8}
    built = instantiate({'_target_': 'torch.nn.TransformerEncoder', 'encoder_layer': layer, 'num_layers': 2})
    assert len(built.layers) == 2


@pytest.mark.parametrize(
    'cfg, message',
    [
        ({'in_features': 3}, "model.proj: no '_target_' among in_features"),
        ({'_target_': 'torch.nn.Linear', 'in_features': 3}, 'model.proj: Linear also needs out_features'),
        (
            {'_target_': 'torch.nn.Linear', 'in_features': 3, 'out_feature': 3},
            r"model.proj.out_feature: Linear takes no such argument. Did you mean 'out_features'\?",
        ),
        ({'_target_': 'torch.nn.Linear', '_partial_': True}, "'_partial_' is not supported"),
        ({'_target_': 'torch.nn.Dropout', 'p': 3.0}, 'model.proj: Dropout: .*has to be between 0 and 1'),
        ({'_target_': 'torch.nn.Linear', 'in_features': 'many', 'out_features': 3}, 'model.proj: Linear: '),
        ({'_target_': 'torch.nn.Sequential', 'x': {'_target_': 'os.system'}}, "model.proj.x: _target_ 'os.system'"),
        ({'_target_': 'torch.nn.ModuleList', 'modules': [{'_target_': 'os.system'}]}, r'model.proj.modules\[0\]: '),
    ],
)
def test_instantiate_names_path_and_fault(cfg, message):
    with pytest.raises(ConfigError, match=message):
        instantiate(cfg, path='model.proj')


def test_instantiate_refuses_another_kind_of_class():
    with pytest.raises(ConfigError, match="'torch.nn.Linear' is no Optimizer"):
        instantiate({'_target_': 'torch.nn.Linear'}, expected_type=torch.optim.Optimizer)


def test_nemo_targets_of_core_resolve_and_read_back():
    ours = {o for o in NEMO_TARGETS.values() if o.startswith('nemo_speech.core.')}
    assert len(ours) == 18
    for name in ours:
        assert resolve_target(to_nemo_target(name)) is resolve_target(name)


def test_to_nemo_target_of_a_class_that_nemo_lacks():
    with pytest.raises(LookupError, match='has no counterpart in NeMo'):
        to_nemo_target('nemo_speech.core.model.ModelPT')
