"""Configurations of small ASR models, and a small tokenizer, for tests."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from tests.tiny import RATE, TEXTS

REPO = Path(__file__).resolve().parents[3]
CLASSES = {
    'ctc': 'EncDecCTCModelBPE',
    'rnnt': 'EncDecRNNTBPEModel',
    'tdt': 'EncDecRNNTBPEModel',
    'hybrid': 'EncDecHybridRNNTCTCBPEModel',
    'hybrid_tdt': 'EncDecHybridRNNTCTCBPEModel',
}
AED = 'EncDecMultiTaskModel'
_ASR = 'nemo.collections.asr.modules'
_CTC = {'_target_': f'{_ASR}.ConvASRDecoder'}
DURATIONS = [0, 1, 2, 3]


def make_tokenizer(root: Path, vocab_size: int) -> Path:
    """Train the tokenizer script on the tests' texts."""
    root.mkdir(parents=True, exist_ok=True)
    (root / 'texts.txt').write_text('\n'.join(TEXTS), encoding='utf-8')
    script = REPO / 'scripts/tokenizers/process_asr_text_tokenizer.py'
    arguments = [f'--data_file={root}/texts.txt', f'--data_root={root}', f'--vocab_size={vocab_size}']
    subprocess.run([sys.executable, script, *arguments, '--spe_type=bpe'], check=True, capture_output=True)
    return root / f'tokenizer_spe_bpe_v{vocab_size}'


def make_special_tokenizer(root: Path) -> Path:
    """The special tokens of Canary prompts, by the script."""
    script = REPO / 'scripts/tokenizers/build_canary_special_tokenizer.py'
    command = [sys.executable, script, root, '--langs', 'en', 'de']
    subprocess.run(command, check=True, capture_output=True)
    return root


def aed_config(tokenizer_dir: Path, special_dir: Path, **keys: Any) -> dict[str, Any]:
    """The `model` section of a Canary of two small layers on each side."""
    config = asr_config('ctc', tokenizer_dir)
    del config['decoder']
    tokenizers = {'spl_tokens': special_dir, 'en': tokenizer_dir, 'de': tokenizer_dir}
    decoder = {
        **{'max_sequence_length': 128, 'hidden_size': 32, 'inner_size': 64, 'num_layers': 2},
        **{'num_attention_heads': 2},
    }
    return {
        **config,
        'prompt_format': 'canary2',
        'tokenizer': {
            'type': 'agg',
            'langs': {lang: {'dir': str(directory), 'type': 'bpe'} for lang, directory in tokenizers.items()},
            'custom_tokenizer': {
                '_target_': 'nemo.collections.common.tokenizers.canary_tokenizer.CanaryTokenizer',
                'tokenizers': None,
            },
        },
        'transf_decoder': {'_target_': f'{_ASR}.transformer.get_nemo_transformer', 'config_dict': decoder},
        'head': {
            '_target_': 'nemo.collections.asr.parts.submodules.token_classifier.TokenClassifier',
            'hidden_size': 32,
        },
        **keys,
    }


def make_clips(root: Path, num_clips: int = 12) -> Path:
    """Clips in which every character is a tone of 80 ms, so that a model can learn them, as a NeMo manifest."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    time_s = np.arange(int(0.08 * RATE)) / RATE
    rows = []
    for i in range(num_clips):
        text = ' '.join(TEXTS[i % len(TEXTS)].split()[: 2 + i // len(TEXTS)])
        wave = np.concatenate([0.3 * np.sin(2 * np.pi * (300 + 110 * (ord(c) % 32)) * time_s) for c in text])
        wave += 0.005 * rng.standard_normal(len(wave))
        path = root / f'clip{i:02d}.wav'
        soundfile.write(path, wave.astype(np.float32), RATE)
        rows.append({'audio_filepath': str(path), 'duration': len(wave) / RATE, 'text': text})
    manifest = root / 'manifest.json'
    manifest.write_text(''.join(json.dumps(row) + '\n' for row in rows), encoding='utf-8')
    return manifest


def asr_config(kind: str, tokenizer_dir: Path, **keys: Any) -> dict[str, Any]:
    """The `model` section of a model of two small FastConformer layers."""
    config: dict[str, Any] = {
        'tokenizer': {'dir': str(tokenizer_dir), 'type': 'bpe'},
        'preprocessor': {
            '_target_': f'{_ASR}.AudioToMelSpectrogramPreprocessor',
            'features': 80,
            'n_fft': 512,
            'dither': 0.0,
            'pad_to': 0,
        },
        'encoder': {
            '_target_': f'{_ASR}.ConformerEncoder',
            'feat_in': 80,
            'd_model': 32,
            'n_heads': 2,
            'n_layers': 2,
            'subsampling': 'dw_striding',
            'subsampling_factor': 4,
            'subsampling_conv_channels': 8,
            'conv_kernel_size': 9,
            'dropout': 0.0,
            'dropout_pre_encoder': 0.0,
            'dropout_emb': 0.0,
        },
        'optim': {'name': 'adamw', 'lr': 3e-3},
    }
    if kind == 'ctc':
        return {**config, 'decoder': _CTC, **keys}
    config['decoder'] = {
        '_target_': f'{_ASR}.RNNTDecoder',
        'prednet': {'pred_hidden': 24, 'pred_rnn_layers': 1},
    }
    config['joint'] = {'_target_': f'{_ASR}.RNNTJoint', 'jointnet': {'joint_hidden': 32}}
    if kind.endswith('tdt'):
        config['loss'] = {'loss_name': 'tdt', 'tdt_kwargs': {'durations': DURATIONS, 'sigma': 0.02}}
    if kind.startswith('hybrid'):
        config['aux_ctc'] = {'decoder': _CTC}
    return {**config, **keys}
