"""The scripts of `examples/asr` as a user runs them: tokenizer, training, resuming, fine-tuning, evaluation."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import nemo_speech.collections.asr as nemo_asr
from nemo_speech.collections.asr.experiment import ASRTrainConfig, MultiTaskTrainConfig
from nemo_speech.core.config import build_config
from nemo_speech.core.errors import ConfigError
from tests.collections.asr.tiny import (
    AED,
    CLASSES,
    aed_config,
    asr_config,
    make_clips,
    make_special_tokenizer,
    make_tokenizer,
)

REPO = Path(__file__).resolve().parents[2]
SCRIPTS = {
    'ctc': 'speech_to_text_ctc',
    'tdt': 'speech_to_text_rnnt',
    'hybrid': 'speech_to_text_hybrid',
    'aed': 'speech_to_text_aed',
}


@pytest.fixture(scope='module')
def tokenizer_dir(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp('tokenizer')
    make_special_tokenizer(root / 'spl')
    return make_tokenizer(root, 40)


@pytest.fixture(scope='module')
def manifest(tmp_path_factory) -> Path:
    return make_clips(tmp_path_factory.mktemp('clips'))


def experiment(kind: str, tokenizer_dir: Path, manifest: Path, log_dir: Path, max_steps: int) -> dict[str, Any]:
    """A run with everything that draws random numbers."""
    data = {'manifest_filepath': str(manifest), 'batch_size': 4}
    is_aed = kind == 'aed'
    model = aed_config(tokenizer_dir, tokenizer_dir.parent / 'spl') if is_aed else asr_config(kind, tokenizer_dir)
    model['encoder'] |= {'dropout': 0.1}
    model |= {
        'train_ds': {**data, 'shuffle': True, 'seed': 1, 'shard_seed': 1},
        'validation_ds': data,
        'spec_augment': {
            '_target_': 'nemo.collections.asr.modules.SpectrogramAugmentation',
            **{'freq_masks': 1, 'freq_width': 5, 'time_masks': 1, 'time_width': 0.05},
        },
        'optim': {
            'name': 'adamw',
            'lr': 3e-3,
            'sched': {'name': 'CosineAnnealing', 'warmup_steps': 2, 'min_lr': 1e-4, 'max_steps': 6},
        },
    }
    return {
        'model': model,
        'trainer': {
            'accelerator': 'cpu',
            'max_steps': max_steps,
            'val_check_interval': 3,
            'check_val_every_n_epoch': None,
            'enable_progress_bar': False,
            'log_every_n_steps': 1,
            'num_sanity_val_steps': 0,
        },
        'exp_manager': {
            'explicit_log_dir': str(log_dir),
            'create_csv_logger': True,
            'create_tensorboard_logger': False,
            'resume_if_exists': True,
            'resume_ignore_no_checkpoint': True,
            'checkpoint_callback_params': {'monitor': 'val_wer', 'save_top_k': 1},
        },
    }


def run(kind: str, config: dict[str, Any]) -> None:
    script = runpy.run_path(str(REPO / 'examples' / 'asr' / f'{SCRIPTS[kind]}.py'))
    schema = MultiTaskTrainConfig if kind == 'aed' else ASRTrainConfig
    script['main'](build_config(schema, config))


def weights(log_dir: Path) -> dict[str, torch.Tensor]:
    return nemo_asr.models.ASRModel.restore_from(next(log_dir.glob('EncDec*.nemo')), map_location='cpu').state_dict()


@pytest.mark.parametrize('kind', SCRIPTS)
def test_three_steps_and_three_after_a_stop_equal_six(kind, tokenizer_dir, manifest, tmp_path):
    run(kind, experiment(kind, tokenizer_dir, manifest, tmp_path / 'straight', 6))
    for max_steps in (3, 6):
        torch.rand(max_steps)
        run(kind, experiment(kind, tokenizer_dir, manifest, tmp_path / 'run', max_steps))
    ours, theirs = weights(tmp_path / 'run'), weights(tmp_path / 'straight')
    assert not [name for name in theirs if not torch.equal(ours[name], theirs[name])]
    straight = tmp_path / 'straight'
    assert (straight / f'{(CLASSES | {"aed": AED})[kind]}.nemo').is_file()
    logged = next(straight.rglob('metrics.csv')).read_text()
    assert all(name in logged for name in ('train_loss', 'val_loss', 'val_wer', 'val_cer', 'learning_rate'))
    rows = [json.loads(line) for line in (straight / 'val_default.jsonl').read_text().splitlines()]
    assert len(rows) == 12 and [row['wer'] for row in rows] == sorted((row['wer'] for row in rows), reverse=True)


def call(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, REPO / 'examples' / 'asr' / f'{script}.py', *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_commands_of_the_page_overfit_finetune_evaluate_and_transcribe(tokenizer_dir, manifest, tmp_path):
    data = [f'model.train_ds.manifest_filepath={manifest}', f'model.validation_ds.manifest_filepath={manifest}']
    common = ['trainer.accelerator=cpu', 'trainer.enable_progress_bar=false', 'model.train_ds.num_workers=0']
    done = call(
        'speech_to_text_ctc',
        *('encoder=tiny', f'model.tokenizer.dir={tokenizer_dir}', *data, *common),
        *('model.encoder.d_model=48', 'model.encoder.n_layers=2', 'model.encoder.subsampling_factor=4'),
        *('~model.train_ds.batch_duration', 'model.train_ds.use_bucketing=false', '+model.train_ds.batch_size=12'),
        *('model.encoder.dropout=0', 'model.encoder.dropout_pre_encoder=0', 'model.encoder.dropout_att=0'),
        *('model.spec_augment.time_masks=0', 'model.spec_augment.freq_masks=0', 'model.optim.sched.warmup_steps=10'),
        *('model.optim.lr=3e-3', 'trainer.max_steps=150', 'trainer.val_check_interval=150'),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    archive = next(tmp_path.glob('nemo_experiments/fastconformer_ctc/*/EncDecCTCModelBPE.nemo'))
    done = call('speech_to_text_eval', f'model_path={archive}', f'dataset_manifest={manifest}', cwd=tmp_path)
    assert done.returncode == 0 and 'WER 0.00%' in done.stdout, done.stdout + done.stderr
    done = call(
        'speech_to_text_finetune',
        *(f'init_from_nemo_model={archive}', *data, *common, 'trainer.max_steps=2', 'trainer.val_check_interval=2'),
        'exp_manager.explicit_log_dir=tuned',
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'tuned' / 'EncDecCTCModelBPE.nemo').is_file()
    clip = json.loads(manifest.read_text().splitlines()[0])
    done = call(
        'transcribe_speech',
        *(f'model_path={archive}', f"audio_dir={clip['audio_filepath']}", 'timestamps=true'),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / 'transcripts.jsonl').read_text())
    assert row['pred_text'] == clip['text'] and row['timestamp']['word'][0]['word'] == clip['text'].split()[0]


@pytest.mark.parametrize(
    ('script', 'arguments', 'message'),
    [
        ('speech_to_text_ctc', ['model.encoder.d_modl=3'], "model.encoder.d_modl: no such key in the YAML"),
        (
            'speech_to_text_ctc',
            ['model.train_ds.manifest_filepath=x.json'],
            'model.validation_ds.manifest_filepath: missing value',
        ),
        ('speech_to_text_eval', ['dataset_manifest=x.json'], 'model_path, pretrained_name: give one of the two'),
        ('transcribe_speech', ['model_path=x.nemo'], 'audio_dir, dataset_manifest: give one of the two'),
        ('transcribe_speech', ['model_path=x.nemo', 'audio_dir=nothing.wav'], 'x.nemo: no such file'),
    ],
)
def test_wrong_arguments_are_named_without_a_traceback(script, arguments, message, tmp_path):
    done = call(script, *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr and 'Traceback' not in done.stderr


def test_keys_of_nemos_other_loader_are_named(tokenizer_dir, manifest, tmp_path):
    config = experiment('ctc', tokenizer_dir, manifest, tmp_path, 1)
    config['model']['train_ds']['trim_silence'] = False
    with pytest.raises(ConfigError, match='model.train_ds.trim_silence'):
        run('ctc', config)
