import csv
import json
import os
import shlex
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from nemo_speech.core.errors import CheckpointError, ConfigError
from nemo_speech.lightning.trainer import build_trainer
from nemo_speech.utils.exp_manager import (
    VERSION_VARIABLE,
    CheckpointParams,
    ExpManagerConfig,
    exp_manager,
    find_log_dir,
    find_resume_checkpoint,
    parse_duration,
)
from nemo_speech.utils.run_callbacks import MaxTimePerRun, command_line


class Line(LightningModule):
    """Regression on one batch again and again: a resumed run needs no data state to equal an uninterrupted one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = (self.layer(batch) - 1).pow(2).mean()
        self.log('train_loss', loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log('val_loss', (self.layer(batch) - 1).pow(2).mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {'optimizer': optimizer, 'lr_scheduler': {'scheduler': schedule, 'interval': 'step'}}

    def save_to(self, path):
        Path(path).write_text('a model')


@pytest.fixture(autouse=True)
def no_version_from_outside(monkeypatch):
    monkeypatch.setenv(VERSION_VARIABLE, 'x')  # so that monkeypatch puts back whatever the code under test sets
    monkeypatch.delenv(VERSION_VARIABLE)


def fit(
    log_dir: Path, max_steps: int, *, callbacks=(), checkpoint=None, trainer_cfg=None, **keys
) -> tuple[Line, Trainer]:
    trainer = build_trainer(
        {'accelerator': 'cpu', 'max_steps': max_steps, 'enable_model_summary': False, 'enable_progress_bar': False,
         'log_every_n_steps': 1, **(trainer_cfg or {})}  # fmt: skip
    )
    trainer.callbacks.extend(callbacks)
    defaults = {'create_tensorboard_logger': False, 'resume_if_exists': True, 'resume_ignore_no_checkpoint': True}
    params = checkpoint or CheckpointParams()
    cfg = ExpManagerConfig(explicit_log_dir=str(log_dir), checkpoint_callback_params=params, **{**defaults, **keys})
    exp_manager(trainer, cfg, config={'lr': 1e-4, 'nested': cfg})
    model = Line()
    data = DataLoader([torch.tensor([[1.0, 2.0]])] * 4, batch_size=None)
    trainer.fit(model, data, data)
    return model, trainer


def checkpoints(log_dir: Path) -> list[str]:
    return sorted(p.name for p in (log_dir / 'checkpoints').iterdir())


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    straight, _ = fit(tmp_path / 'straight', 7)
    fit(tmp_path / 'parts', 3)
    resumed, trainer = fit(tmp_path / 'parts', 7)
    assert trainer.global_step == 7
    assert torch.equal(straight.layer.weight, resumed.layer.weight)
    assert torch.equal(straight.layer.bias, resumed.layer.bias)


def test_best_and_last_checkpoints(tmp_path):
    _, trainer = fit(tmp_path, 10, checkpoint=CheckpointParams(filename='{step}', save_top_k=1))
    assert checkpoints(tmp_path) == ['step=10-last.ckpt', 'step=8.ckpt']
    saved = torch.load(tmp_path / 'checkpoints' / 'step=10-last.ckpt', weights_only=True)
    assert saved['global_step'] == 10
    assert trainer.checkpoint_callback.best_model_path.endswith('step=8.ckpt')


def test_a_validation_after_the_last_step_still_gives_a_best_checkpoint(tmp_path):
    fit(tmp_path, 8, checkpoint=CheckpointParams(filename='{step}', save_top_k=1))
    assert checkpoints(tmp_path) == ['step=8-last.ckpt', 'step=8.ckpt']


def test_time_limit_stops_with_a_last_checkpoint_and_counts_afresh(tmp_path):
    _, trainer = fit(tmp_path / 'parts', 12, callbacks=[MaxTimePerRun(timedelta(microseconds=1))])
    assert trainer.global_step == 1
    assert [name for name in checkpoints(tmp_path / 'parts') if 'last' in name]
    resumed, trainer = fit(tmp_path / 'parts', 12, max_time_per_run='00:01:00:00')
    straight, _ = fit(tmp_path / 'straight', 12)
    assert (trainer.global_step, trainer.current_epoch) == (12, 3)
    assert torch.equal(straight.layer.weight, resumed.layer.weight)


def test_nemo_files_follow_the_best_checkpoints(tmp_path):
    params = CheckpointParams(filename='{step}', save_top_k=1, always_save_nemo=True, save_nemo_on_train_end=True)
    fit(tmp_path, 9, checkpoint=params, name='mine')
    assert checkpoints(tmp_path) == ['mine.nemo', 'step=8.ckpt', 'step=8.nemo', 'step=9-last.ckpt']


def test_save_best_model_puts_the_best_weights_into_the_final_file(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Line, 'save_to', lambda self, path: seen.append(self.layer.weight.detach().clone()))
    params = CheckpointParams(filename='{step}', save_top_k=1, save_nemo_on_train_end=True, save_best_model=True)
    fit(tmp_path, 10, checkpoint=params)
    best = torch.load(tmp_path / 'checkpoints' / 'step=8.ckpt', weights_only=True)
    assert torch.equal(seen[-1], best['state_dict']['layer.weight'])


def test_early_stopping(tmp_path):
    from nemo_speech.utils.exp_manager import EarlyStoppingParams

    stop = EarlyStoppingParams(patience=1, min_delta=1e9)
    _, trainer = fit(tmp_path, 100, create_early_stopping_callback=True, early_stopping_callback_params=stop)
    assert trainer.global_step == 8


def test_records_of_the_run(tmp_path):
    (tmp_path / 'notes.txt').write_text('x')
    for _ in range(2):
        fit(tmp_path / 'run', 1, create_checkpoint_callback=False, resume_if_exists=False,
            create_csv_logger=True, files_to_copy=[str(tmp_path / 'notes.txt')])  # fmt: skip
    names = sorted(p.name for p in (tmp_path / 'run').iterdir())
    assert names == ['config.yaml', 'config_1.yaml', 'csv', 'environment.json', 'environment_1.json', 'notes.txt']
    config = yaml.safe_load((tmp_path / 'run' / 'config.yaml').read_text())
    assert config['lr'] == 1e-4 and config['nested']['checkpoint_callback_params']['save_top_k'] == 3
    environment = json.loads((tmp_path / 'run' / 'environment.json').read_text())
    assert environment['packages']['torch'] == torch.__version__.split('+')[0] and len(environment['command']) > 1


def test_csv_logs_of_a_resumed_run_keep_the_first_ones(tmp_path):
    fit(tmp_path, 3, create_csv_logger=True)
    fit(tmp_path, 5, create_csv_logger=True)
    steps = []
    for version in ('version_0', 'version_1'):
        with (tmp_path / 'csv' / version / 'metrics.csv').open() as file:
            steps += [int(row['step']) for row in csv.DictReader(file) if row['train_loss']]
    assert steps == [0, 1, 2, 3, 4]


def test_tensorboard_files_lie_in_the_log_directory(tmp_path):
    pytest.importorskip('tensorboard')
    fit(tmp_path, 1, create_tensorboard_logger=True, create_checkpoint_callback=False)
    assert any(p.name.startswith('events.out.tfevents') for p in tmp_path.iterdir())


def test_final_summary_says_where_things_are_and_how_to_train_on(tmp_path, capfd, monkeypatch):
    typed = ['/venv/bin/python', '/venv/bin/nemo-speech', 'salm-train', 'trainer.max_steps=8', 'a=1']
    monkeypatch.setattr(sys, 'orig_argv', typed)
    fit(tmp_path, 8, checkpoint=CheckpointParams(filename='{step}'))
    text = capfd.readouterr().err
    assert 'Stopped at step 8' in text and f'results     {tmp_path}' in text
    assert f'best        {tmp_path}/checkpoints/step=8.ckpt (val_loss ' in text
    assert f'last        {tmp_path}/checkpoints/step=8-last.ckpt' in text
    command = shlex.split(text.partition('to train on')[2])
    assert command[:3] == ['nemo-speech', 'salm-train', 'a=1']
    last = f"++exp_manager.resume_from_checkpoint='{tmp_path}/checkpoints/step=8-last.ckpt'"
    assert command[3:5] == [last, '++trainer.max_steps=16']


@pytest.mark.parametrize(
    'argv, wanted',
    [
        (['/bin/python', 'salm_train.py', 'a=1'], ['python', 'salm_train.py', 'a=1']),
        (['/bin/python3.11', '-m', 'nemo_speech', 'salm-train'], ['python', '-m', 'nemo_speech', 'salm-train']),
        (['/bin/python', '/bin/nemo-speech', 'salm-train'], ['nemo-speech', 'salm-train']),
    ],
    ids=['script', 'module', 'command'],
)
def test_command_line_is_what_was_typed(argv, wanted):
    assert command_line(argv) == wanted


@pytest.mark.parametrize(
    'keys, wanted',
    [
        ({'explicit_log_dir': 'here'}, 'here'),
        ({'exp_dir': 'e', 'name': 'n', 'version': 'v'}, 'e/n/v'),
        ({'exp_dir': 'e', 'name': 'n', 'resume_if_exists': True}, 'e/n'),
        ({'use_datetime_version': False}, 'nemo_experiments/default/version_2'),
    ],
)
def test_find_log_dir(tmp_path, monkeypatch, keys, wanted):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'nemo_experiments' / 'default' / 'version_1').mkdir(parents=True)
    assert find_log_dir(ExpManagerConfig(**keys)) == Path(wanted)


def test_find_log_dir_is_the_same_in_processes_started_later(monkeypatch):
    first = find_log_dir(ExpManagerConfig(exp_dir='e'))
    assert os.environ[VERSION_VARIABLE] == first.name
    assert find_log_dir(ExpManagerConfig(exp_dir='e')) == first


def write_checkpoint(path: Path, age_s: int) -> Path:
    torch.save({}, path)
    os.utime(path, (1_000_000 - age_s, 1_000_000 - age_s))
    return path


def test_find_resume_checkpoint_takes_the_newest_last(tmp_path):
    write_checkpoint(tmp_path / 'a-last.ckpt', 20)
    newest = write_checkpoint(tmp_path / 'step=5-last.ckpt', 10)
    write_checkpoint(tmp_path / 'best.ckpt', 0)
    end = write_checkpoint(tmp_path / 'a-end.ckpt', 5)
    assert find_resume_checkpoint(ExpManagerConfig(resume_if_exists=True), tmp_path) == newest
    assert find_resume_checkpoint(ExpManagerConfig(resume_if_exists=True, resume_past_end=True), tmp_path) == end
    assert find_resume_checkpoint(ExpManagerConfig(), tmp_path) is None
    named = ExpManagerConfig(resume_from_checkpoint=str(tmp_path / 'best.ckpt'))
    assert find_resume_checkpoint(named, tmp_path).name == 'best.ckpt'


def test_find_resume_checkpoint_names_the_fault(tmp_path):
    resume = ExpManagerConfig(resume_if_exists=True)
    with pytest.raises(ConfigError, match='no \\*last.ckpt in .*resume_ignore_no_checkpoint=True'):
        find_resume_checkpoint(resume, tmp_path)
    assert (
        find_resume_checkpoint(ExpManagerConfig(resume_if_exists=True, resume_ignore_no_checkpoint=True), tmp_path)
        is None
    )
    with pytest.raises(ConfigError, match='resume_from_checkpoint: nowhere.ckpt does not exist'):
        find_resume_checkpoint(ExpManagerConfig(resume_from_checkpoint='nowhere.ckpt'), tmp_path)
    whole = write_checkpoint(tmp_path / 'x-last.ckpt', 0).read_bytes()
    (tmp_path / 'x-last.ckpt').write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match='x-last.ckpt is damaged or incomplete'):
        find_resume_checkpoint(resume, tmp_path)


def test_exp_manager_refuses_a_trainer_that_logs_or_saves_already(tmp_path):
    cfg = ExpManagerConfig(explicit_log_dir=str(tmp_path), create_tensorboard_logger=False, create_csv_logger=True)
    with pytest.raises(ConfigError, match='trainer.logger=False'):
        exp_manager(Trainer(accelerator='cpu', logger=True, default_root_dir=tmp_path), cfg)
    with pytest.raises(ConfigError, match='trainer.enable_checkpointing=False'):
        exp_manager(Trainer(accelerator='cpu', logger=False, enable_checkpointing=True), cfg)
    missing = ExpManagerConfig(explicit_log_dir=str(tmp_path), files_to_copy=['nothing.txt'])
    with pytest.raises(ConfigError, match='files_to_copy: nothing.txt does not exist'):
        exp_manager(Trainer(accelerator='cpu', logger=False, enable_checkpointing=False), missing)


def test_log_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / 'file').write_text('')
    cfg = ExpManagerConfig(explicit_log_dir=str(tmp_path / 'file' / 'run'), create_tensorboard_logger=False)
    with pytest.raises(ConfigError, match='file/run cannot be made .*give explicit_log_dir another place'):
        exp_manager(Trainer(accelerator='cpu', logger=False, enable_checkpointing=False), cfg)


def test_several_best_checkpoints_need_a_metric_that_is_logged(tmp_path):
    with pytest.raises(ConfigError, match='save_top_k: 3 without a monitor'):
        fit(tmp_path, 4, checkpoint=CheckpointParams(monitor=None, save_top_k=3))
    with pytest.raises(ConfigError, match="monitor: 'val_los' is not logged. Logged are .*val_loss"):
        fit(tmp_path, 4, checkpoint=CheckpointParams(monitor='val_los'))


def test_parse_duration():
    assert parse_duration('01:02:03:04') == timedelta(days=1, hours=2, minutes=3, seconds=4)
    with pytest.raises(ValueError, match="'3h' is no duration DD:HH:MM:SS"):
        ExpManagerConfig(max_time_per_run='3h')


def test_progress_bar_counts_the_whole_run(tmp_path, capfd):
    fit(tmp_path, 6, trainer_cfg={'enable_progress_bar': True}, create_checkpoint_callback=False)
    text = capfd.readouterr().out
    last = text.replace('\r', '\n').strip().split('\n')[-1]
    assert last.startswith('Training: 100%') and '6/6 [' in last and 'step/s' in last and 'train_loss=' in last
