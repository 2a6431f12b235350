"""`hydra_runner` as a user meets it: a script, a YAML file, a shell."""

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SCRIPT = '''
import os
from dataclasses import dataclass, field
from typing import Any, Optional
from nemo_speech.core.config import hydra_runner

@dataclass
class Trainer:
    devices: int = 1
    max_steps: int = 10
    max_time: Optional[str] = None

@dataclass
class Config:
    lr: float
    trainer: Trainer = field(default_factory=Trainer)
    optimizer: dict[str, Any] = field(default_factory=dict)

@hydra_runner(config_path='conf', config_name='base', schema=Config)
def main(cfg: Config) -> None:
    print('GOT', cfg, os.path.basename(os.getcwd()))

if __name__ == '__main__':
    main()
'''
YAML = '''
lr: 1e-3
trainer:
  devices: 2
optimizer:
  _target_: torch.optim.AdamW
  max_steps: ${trainer.devices}
  both: ${sum:${trainer.devices},1}
  twice: ${multiply:${trainer.devices},2}
'''


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / 'scripts' / 'conf').mkdir(parents=True)
    (tmp_path / 'scripts' / 'run.py').write_text(SCRIPT)
    (tmp_path / 'scripts' / 'conf' / 'base.yaml').write_text(YAML)
    (tmp_path / 'scripts' / 'conf' / 'other.yaml').write_text('lr: 5\n')
    (tmp_path / 'work').mkdir()
    return tmp_path


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, str(project / 'scripts' / 'run.py'), *arguments],
        cwd=project / 'work',
        env={'PYTHONPATH': str(REPO), 'PATH': '/usr/bin:/bin', 'PYTHONDONTWRITEBYTECODE': '1'},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert list((project / 'work').iterdir()) == [], 'litter in the working directory'
    return done


def test_overrides_of_every_kind_reach_the_typed_config(project):
    done = run(
        project,
        'trainer.devices=8',
        '+optimizer.eps=1e-9',
        '++optimizer.lr=2',
        '~optimizer.both',
        'trainer.max_time=1h',
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "GOT Config(lr=0.001, trainer=Trainer(devices=8, max_steps=10, max_time='1h'), optimizer={'_target_': "
        "'torch.optim.AdamW', 'max_steps': 8, 'twice': 16, 'eps': 1e-09, 'lr': 2}) work"
    )


def test_config_name_and_multirun(project):
    done = run(project, '--config-name', 'other', '--multirun', 'lr=1,2')
    assert done.returncode == 0, done.stderr
    assert [line.split(', trainer')[0] for line in done.stdout.splitlines() if line.startswith('GOT')] == [
        'GOT Config(lr=1.0',
        'GOT Config(lr=2.0',
    ]


def test_config_dir_and_cfg_job(project):
    (project / 'extra').mkdir()
    (project / 'extra' / 'mine.yaml').write_text('lr: 7\n')
    done = run(project, '--config-dir', str(project / 'extra'), '--config-name', 'mine', '--cfg', 'job')
    assert (done.returncode, done.stdout.strip()) == (0, 'lr: 7')


def test_help(project):
    done = run(project, '--help')
    assert done.returncode == 0 and 'devices: 2' in done.stdout


@pytest.mark.parametrize(
    'arguments, message',
    [
        (
            ['trainer.devces=8'],
            "ConfigError: command line: trainer.devces: unknown key. Did you mean 'trainer.devices'?\n",
        ),
        (['trainer.max_steps=two'], "ConfigError: base.yaml: trainer.max_steps: expected int, got 'two' (str).\n"),
        (
            ['+trainer.x=1'],
            'ConfigError: base.yaml: trainer.x: unknown key. Valid here: devices, max_steps, max_time.\n',
        ),
        (['lr=???'], "ConfigError: base.yaml: lr: missing value ('???'); set it (float).\n"),
        (['lr=${nope.x}'], "ConfigError: base.yaml: lr: Interpolation key 'nope.x' not found\n"),
    ],
    ids=['unknown', 'type', 'added-unknown', 'missing', 'interpolation'],
)
def test_errors_are_one_line_and_exit_code_1(project, arguments, message):
    done = run(project, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, '', message)


def test_other_hydra_errors_are_hydras_own(project):
    done = run(project, 'trainer.devices')
    assert done.returncode == 1 and 'trainer.devices' in done.stderr


def test_calling_the_function_with_a_config_needs_no_hydra():
    from dataclasses import dataclass

    from nemo_speech.core.config import hydra_runner

    @dataclass
    class Config:
        a: int = 1

    @hydra_runner(config_name='x', schema=Config)
    def main(cfg):
        return cfg

    assert main({'a': 2}) == Config(2) and main(Config(3)) == Config(3)
