"""`salm_train.py` as a user runs it, on tiny real parts: trains, resumes bit for bit, and leaves a usable model."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nemo_speech.collections.speechlm2 import SALM, SALMTrainConfig
from nemo_speech.core.config import build_config
from nemo_speech.core.errors import AudioError, ConfigError
from tests.tiny import salm_config, write_json

REPO = Path(__file__).resolve().parents[2]


def experiment(llm: Path, cuts: Path, log_dir: Path, max_steps: int) -> dict[str, Any]:
    """A run with everything that draws random numbers: shuffling, bucketing, SpecAugment, dropout, dither."""
    model = salm_config(llm)
    model['lora'] |= {'lora_dropout': 0.2}
    model['perception']['preprocessor'] |= {'dither': 1e-5}
    model['perception']['spec_augment'] = {
        '_target_': 'nemo.collections.asr.modules.SpectrogramAugmentation',
        'freq_masks': 2,
        'freq_width': 10,
        'time_masks': 2,
        'time_width': 0.1,
    }
    source = {
        'type': 'lhotse_as_conversation',
        'cuts_path': str(cuts),
        'tags': {'context': 'Transcribe the following:'},
    }
    common = {
        'prompt_format': 'llama2',
        'audio_locator_tag': '<|audioplaceholder|>',
        'token_equivalent_duration': 0.08,
        'input_cfg': [source],
    }
    return {
        'model': model,
        'trainer': {
            'accelerator': 'cpu',
            'max_steps': max_steps,
            'log_every_n_steps': 1,
            'enable_progress_bar': False,
            'num_sanity_val_steps': 0,
            'gradient_clip_val': 1.0,
            'val_check_interval': 3,  # at the very step where the other run stops
            'check_val_every_n_epoch': None,
        },
        'data': {
            'train_ds': {
                **common,
                'shuffle': True,
                'seed': 7,
                'batch_duration': 4.0,
                'use_bucketing': True,
                'num_buckets': 2,
            },
            'validation_ds': {**common, 'datasets': {'clips': {}}, 'batch_size': 6},
        },
        'exp_manager': {
            'explicit_log_dir': str(log_dir),
            'create_csv_logger': True,
            'create_tensorboard_logger': False,
            'resume_if_exists': True,
            'resume_ignore_no_checkpoint': True,
            'checkpoint_callback_params': {'monitor': None, 'save_top_k': 1, 'every_n_train_steps': 3},
        },
    }


def run(config: dict[str, Any]) -> None:
    """Call the example script's function in this process."""
    import runpy

    script = runpy.run_path(str(REPO / 'examples' / 'speechlm2' / 'salm_train.py'))
    script['main'](build_config(SALMTrainConfig, config))


@pytest.fixture(scope='module')
def straight(tiny_llm, tiny_cuts, tmp_path_factory) -> Path:
    """Log directory of six steps without a stop."""
    log_dir = tmp_path_factory.mktemp('straight') / 'run'
    run(experiment(tiny_llm, tiny_cuts, log_dir, max_steps=6))
    return log_dir


def test_three_steps_and_three_after_a_stop_equal_six(straight, tiny_llm, tiny_cuts, tmp_path):
    for max_steps in (3, 6):
        torch.rand(max_steps)  # a new process would not start with the same random state either
        run(experiment(tiny_llm, tiny_cuts, tmp_path / 'run', max_steps) | {'seed': 42 if max_steps == 3 else 1234})
    ours, theirs = (load_file(d / 'hf' / 'model.safetensors') for d in (tmp_path / 'run', straight))
    assert ours.keys() == theirs.keys()
    assert not [name for name in theirs if not torch.equal(ours[name], theirs[name])]


def test_run_leaves_logs_checkpoints_config_and_a_model_that_transcribes(straight, tiny_cuts):
    assert list(straight.glob('checkpoints/*last*.ckpt'))
    assert 'val_wer_clips' in (next(straight.rglob('metrics.csv'))).read_text()
    model = SALM.from_pretrained(straight / 'hf')
    assert [type(text) for text in model.transcribe(tiny_cuts, max_new_tokens=4, verbose=False)] == [str] * 12


def test_checkpoint_leaves_frozen_weights_out_and_to_hf_brings_them_back(straight, tmp_path):
    checkpoint = next(straight.glob('checkpoints/*last*.ckpt'))
    state = torch.load(checkpoint, weights_only=True)['state_dict']
    assert state and not any('word_embeddings' in name for name in state)
    arguments = [
        f'ckpt_path="{checkpoint}"',
        f'ckpt_config={straight / "config.yaml"}',
        f'output_dir={tmp_path / "hf"}',
    ]
    subprocess.run([sys.executable, REPO / 'examples/speechlm2/to_hf.py', *arguments], check=True, cwd=tmp_path)
    ours, theirs = (load_file(d / 'model.safetensors') for d in (tmp_path / 'hf', straight / 'hf'))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize('seed', [-1, 2**32])
def test_seed_is_what_every_generator_takes(seed, tiny_llm, tiny_cuts, tmp_path):
    with pytest.raises(ConfigError, match=f'seed: expected 0 to 4294967295, or null, got {seed}'):
        build_config(SALMTrainConfig, {**experiment(tiny_llm, tiny_cuts, tmp_path, 1), 'seed': seed})


def test_command_line_reports_a_wrong_key_with_the_nearest_one(tiny_llm, tiny_cuts, tmp_path):
    config = write_json(tmp_path / 'run.yaml', experiment(tiny_llm, tiny_cuts, tmp_path / 'run', 1))
    done = subprocess.run(
        [
            sys.executable,
            REPO / 'examples/speechlm2/salm_train.py',
            f'--config-path={config.parent}',
            '--config-name=run',
            'model.optimiser.lr=1e-4',
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert 'optimizer' in done.stderr and 'Traceback' not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ['run.yaml']


def test_unreadable_audio_stops_the_run_or_is_skipped_and_counted_by_policy(tiny_llm, tiny_cuts, tmp_path, caplog):
    from lhotse import CutSet

    cuts = list(CutSet.from_file(tiny_cuts))[:3]
    cuts[1].recording.sources[0].source = str(tmp_path / 'gone.wav')
    CutSet.from_cuts(cuts).to_file(tmp_path / 'cuts.jsonl.gz')
    config = experiment(tiny_llm, tmp_path / 'cuts.jsonl.gz', tmp_path / 'run', max_steps=2)
    config['data']['validation_ds'] = None
    with pytest.raises(AudioError, match='gone.wav'):
        run(config)
    config['data']['on_audio_error'] = 'skip'
    config['exp_manager']['explicit_log_dir'] = str(tmp_path / 'again')
    run(config)
    assert 'dropped' in caplog.text and 'gone.wav' in caplog.text


def test_the_command_of_the_readme_trains_validates_and_saves_in_epochs_shorter_than_the_interval(
    tiny_llm, tiny_cuts, tmp_path
):
    from nemo_speech.collections.speechlm2.modules.perception import AudioPerceptionModule
    from nemo_speech.core.archive import write_nemo

    parts = salm_config(tiny_llm)['perception']
    perception = AudioPerceptionModule({**parts, 'output_dim': 32})
    weights = {k: v for k, v in perception.state_dict().items() if k.startswith(('encoder.', 'preprocessor.'))}
    config = {'target': 'nemo.collections.asr.models.EncDecCTCModelBPE'}
    write_nemo(tmp_path / 'stt.nemo', config | {key: parts[key] for key in ('preprocessor', 'encoder')}, weights)
    # As docs/data.md shows it: nothing in it but where the data is.
    source = [{'type': 'lhotse_as_conversation', 'cuts_path': str(tiny_cuts), 'tags': {'context': 'Transcribe:'}}]
    data = write_json(tmp_path / 'data.yaml', source)
    adapter = 'model.perception.modality_adapter'
    arguments = [
        f'model.pretrained_llm={tiny_llm}',
        f'model.pretrained_asr={tmp_path}/stt.nemo',
        'model.prompt_format=qwen',
        f'data.train_ds.input_cfg={data}',
        f'data.validation_ds.datasets.val_set_0.input_cfg={data}',
        'trainer.max_steps=5',
        'trainer.precision=32',
        # 12 clips in batches of 4 are 3 steps an epoch
        'trainer.val_check_interval=4',
        *(f'{adapter}.{key}' for key in ('feat_in=16', 'd_model=16', 'n_heads=2', 'n_layers=1')),
    ]
    script = REPO / 'examples/speechlm2/salm_train.py'
    done = subprocess.run([sys.executable, script, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'Step 4: ' in done.stderr + done.stdout
    results = tmp_path / 'salm_results'
    assert list(results.glob('checkpoints/*step=4.ckpt')) and (results / 'hf' / 'model.safetensors').is_file()
    assert 'val_wer_val_set_0' in next(results.rglob('metrics.csv')).read_text()
