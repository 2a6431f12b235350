import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from nemo_speech.core.errors import CheckpointError, ConfigError
from nemo_speech.core.schema import build_config
from nemo_speech.lightning.checkpoint_io import SafeCheckpointIO
from nemo_speech.lightning.precision import HalfPrecisionForAudio
from nemo_speech.lightning.trainer import TrainerConfig, build_trainer, resolve_trainer_cfg

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason='needs a machine without a GPU')

# The trainer section of NeMo's salm.yaml.
SALM = {
    'devices': -1, 'accelerator': 'cpu', 'num_nodes': 1, 'precision': 'bf16-true', 'logger': False,
    'enable_checkpointing': False, 'use_distributed_sampler': False, 'max_steps': 100000, 'limit_train_batches': 100,
    'val_check_interval': 100, 'limit_val_batches': 10, 'log_every_n_steps': 10, 'num_sanity_val_steps': 1,
    'gradient_clip_val': 1.0, 'accumulate_grad_batches': 1,
    'strategy': {
        '_target_': 'lightning.pytorch.strategies.DDPStrategy',
        'gradient_as_bucket_view': True,
        'find_unused_parameters': True,
    },
}  # fmt: skip


def test_resolve_trainer_cfg_takes_nemos_salm_section():
    kwargs = resolve_trainer_cfg(SALM)
    assert isinstance(kwargs['strategy'], DDPStrategy)
    assert (kwargs['accelerator'], kwargs['devices'], kwargs['precision']) == ('cpu', 1, None)
    assert [type(p) for p in kwargs['plugins']] == [SafeCheckpointIO, HalfPrecisionForAudio]
    assert SALM['strategy']['_target_']  # not consumed


@pytest.mark.parametrize(
    'precision, wanted',
    [
        (32, '32-true'),
        ('32', '32-true'),
        ('bf16-mixed', 'bf16-mixed'),
        ('bf16', 'bf16-mixed'),
        ('bf16-true', 'bf16-true'),
    ],
)
def test_build_trainer_runs_at_the_precision_asked_for(precision, wanted):
    trainer = build_trainer({'accelerator': 'cpu', 'precision': precision, 'max_steps': 1})
    assert trainer.precision == wanted and trainer.loggers == []


def test_build_trainer_takes_every_declared_argument():
    trainer = build_trainer(TrainerConfig(accelerator='cpu', max_steps=5, profiler='simple', callbacks=[
        {'_target_': 'lightning.pytorch.callbacks.LearningRateMonitor', 'logging_interval': 'step'}
    ]))  # fmt: skip
    assert trainer.max_steps == 5
    assert [type(c).__name__ for c in trainer.callbacks][:2] == ['LearningRateMonitor', 'TrainingProgressBar']


@no_gpu
@pytest.mark.parametrize('name', ['gpu', 'cuda'])
def test_a_gpu_that_is_not_there_is_an_error_with_the_remedy(name):
    with pytest.raises(ConfigError, match=f"trainer.accelerator: '{name}' was asked for.*Set trainer.accelerator=cpu"):
        resolve_trainer_cfg({'accelerator': name})


@no_gpu
def test_auto_takes_the_cpu():
    assert resolve_trainer_cfg({})['accelerator'] == 'cpu' and resolve_trainer_cfg({'devices': -1})['devices'] == 1


@pytest.mark.parametrize(
    'cfg, message',
    [
        ({'max_step': 1}, r"trainer.max_step: unknown key. Did you mean 'max_steps'\?"),
        ({'max_steps': 1.5}, 'trainer.max_steps: expected int, got 1.5'),
        ({'precision': 'fp7', 'accelerator': 'cpu'}, "trainer.precision: 'fp7' is not known; known are 64, 32"),
        ({'accumulate_grad_batches': 0}, 'trainer: accumulate_grad_batches: expected 1 or more, got 0'),
        ({'gradient_clip_val': -1.0}, 'trainer: gradient_clip_val: expected 0 or more, got -1.0'),
        ({'log_every_n_steps': -1}, 'trainer: log_every_n_steps: expected 0 or more, got -1'),
        ({'gradient_clip_algorithm': 'x'}, "trainer.gradient_clip_algorithm: expected one of 'norm', 'value'"),
        (
            {'strategy': {'_target_': 'os.system'}, 'accelerator': 'cpu'},
            "trainer.strategy: _target_ 'os.system' is not",
        ),
        (
            {'callbacks': [{'_target_': 'torch.nn.Linear'}], 'accelerator': 'cpu'},
            r'trainer.callbacks\[0\]: .* is no Callback',
        ),
    ],
)
def test_wrong_trainer_keys_are_named(cfg, message):
    with pytest.raises(ConfigError, match=message):
        resolve_trainer_cfg(cfg)


@pytest.mark.parametrize('cfg', [{'profiler': 'fast'}, {'max_epochs': -5}, {'strategy': 'dpp'}], ids=lambda c: [*c][0])
def test_what_lightning_refuses_is_an_error_of_the_section(cfg):
    with pytest.raises(ConfigError, match='^trainer: '):
        build_trainer({'accelerator': 'cpu', **cfg})


def test_config_accepts_what_the_trainer_accepts():
    """Every argument of Lightning's Trainer is a field, but those that only code can give."""
    import inspect
    from dataclasses import fields

    from lightning.pytorch import Trainer

    arguments = set(inspect.signature(Trainer.__init__).parameters) - {'self'}
    assert arguments - {f.name for f in fields(TrainerConfig)} == {'plugins', 'model_registry'}
    assert build_config(TrainerConfig, {}) == TrainerConfig()


def test_half_precision_leaves_audio_and_integers_alone():
    plugin = HalfPrecisionForAudio('bf16-true')
    batch = {
        'audios': torch.ones(2),
        'audio_lens': torch.ones(2, dtype=torch.int64),
        'features': torch.ones(2),
        'input_ids': torch.ones(2, dtype=torch.int64),
        'nested': {'source_audio': torch.ones(2), 'x': [torch.ones(2), 'text', None]},
    }
    got = plugin.convert_input({'set': (batch, 0, 0)})['set'][0]
    assert got['audios'].dtype == got['nested']['source_audio'].dtype == torch.float32
    assert got['features'].dtype == got['nested']['x'][0].dtype == torch.bfloat16
    assert got['audio_lens'].dtype == got['input_ids'].dtype == torch.int64
    assert got['nested']['x'][1:] == ['text', None]


class Payload:
    def __reduce__(self):
        return print, ('this must not run',)


def test_checkpoints_are_read_as_plain_data(tmp_path):
    io = SafeCheckpointIO()
    io.save_checkpoint({'state_dict': {'w': torch.ones(1)}, 'x': [1, 'a', None]}, tmp_path / 'good.ckpt')
    assert io.load_checkpoint(tmp_path / 'good.ckpt')['x'] == [1, 'a', None]
    torch.save({'x': Payload()}, tmp_path / 'bad.ckpt')
    with pytest.raises(CheckpointError, match='bad.ckpt holds objects other than tensors and plain values'):
        io.load_checkpoint(tmp_path / 'bad.ckpt')
    (tmp_path / 'cut.ckpt').write_bytes((tmp_path / 'good.ckpt').read_bytes()[:200])
    with pytest.raises(CheckpointError, match='cut.ckpt is damaged'):
        io.load_checkpoint(tmp_path / 'cut.ckpt')
