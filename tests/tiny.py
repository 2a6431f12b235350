"""Small real parts to build whole models from: a random LLM with a trained tokenizer, clips, configurations.

Nothing here stands in for a part of the package: they are real Llama/Qwen3 models and real audio files, only tiny.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

TEXTS = (
    'your call is very important to us',
    'please press one for the operator',
    'log in again',
    'the number you have dialed is not in service',
    'thank you for calling goodbye',
    'the conference is now being recorded',
)
SPECIALS = ['<unk>', '<s>', '</s>', '<pad>', '<|im_start|>', '<|im_end|>']
RATE = 16000


def make_tiny_llm(directory: Path, arch: str = 'llama', seed: int = 0) -> Path:
    """A two-layer random causal LM (`llama`: untied, `qwen3`: tied) with a byte-level BPE tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE(unk_token='<unk>'))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token='<s>', eos_token='</s>', pad_token='<pad>', unk_token='<unk>'
    ).save_pretrained(directory)
    shape = {
        'vocab_size': 336,
        'hidden_size': 32,
        'intermediate_size': 64,
        'num_hidden_layers': 2,
        'num_attention_heads': 4,
        'num_key_value_heads': 2,
        'max_position_embeddings': 512,
        'bos_token_id': 1,
        'eos_token_id': 2,
        'pad_token_id': 3,
    }
    torch.manual_seed(seed)
    if arch == 'llama':
        model = LlamaForCausalLM(LlamaConfig(**shape))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=8, tie_word_embeddings=True))
    model.save_pretrained(directory)
    return directory


def make_tiny_cuts(directory: Path, num_clips: int = 12, seed: int = 0) -> Path:
    """Clips of 0.4 to 1.2 s, each a chord that depends on its text, as wavs and a lhotse `cuts.jsonl.gz`."""
    from lhotse import CutSet, Recording, SupervisionSegment

    rng = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    cuts = []
    for i in range(num_clips):
        text = TEXTS[i % len(TEXTS)]
        time_s = np.arange(int(RATE * rng.uniform(0.4, 1.2))) / RATE
        wave = sum(np.sin(2 * np.pi * (200 + 7 * ord(c)) * time_s) for c in set(text)) / 40
        wave += 0.01 * rng.standard_normal(len(time_s))
        path = directory / f'clip{i:02d}.wav'
        soundfile.write(path, wave.astype(np.float32), RATE)
        cut = Recording.from_file(path, recording_id=path.stem).to_cut()
        cut.supervisions = [SupervisionSegment(path.stem, path.stem, 0.0, cut.duration, text=text, language='en')]
        cuts.append(cut)
    CutSet.from_cuts(cuts).to_file(directory / 'cuts.jsonl.gz')
    return directory / 'cuts.jsonl.gz'


def salm_config(llm: Path, **model: Any) -> dict[str, Any]:
    """`model` section of a SALM with a one-layer FastConformer of random weights over the LLM of `make_tiny_llm`."""
    conformer = {
        '_target_': 'nemo.collections.asr.modules.ConformerEncoder',
        'feat_in': 80,
        'd_model': 16,
        'n_heads': 2,
        'n_layers': 1,
        'subsampling': 'dw_striding',
        'subsampling_factor': 8,
        'subsampling_conv_channels': 8,
        'conv_kernel_size': 9,
    }
    config = {
        'pretrained_llm': str(llm),
        'prompt_format': 'llama2',
        'freeze_params': [r'^llm\..+$', r'^embed_tokens\..+$', r'^perception\.preprocessor\..+$'],
        'prevent_freeze_params': [r'^.+\.lora_.+$'],
        'lora': {'task_type': 'CAUSAL_LM', 'r': 4, 'lora_alpha': 8, 'target_modules': ['q_proj', 'v_proj']},
        'perception': {
            'preprocessor': {
                '_target_': 'nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor',
                'features': 80,
                'n_fft': 512,
                'dither': 0.0,
                'pad_to': 0,
            },
            'encoder': conformer,
            'modality_adapter': {
                '_target_': 'nemo.collections.speechlm2.modules.perception.IdentityConnector',
                'd_model': 16,
            },
        },
        'optimizer': {'_target_': 'torch.optim.AdamW', 'lr': 1e-3},
        'lr_scheduler': {
            '_target_': 'nemo.core.optim.lr_scheduler.CosineAnnealing',
            'warmup_steps': 2,
            'min_lr': 1e-5,
            'max_steps': 20,
        },
    }
    return config | model


def write_json(path: Path, value: Any) -> Path:
    """Write JSON, which is YAML too."""
    path.write_text(json.dumps(value, indent=1), encoding='utf-8')
    return path


def save_tiny_asr(path: Path) -> list[str]:
    """Write a CTC model of random weights over characters, with an archive's configuration; returns its labels."""
    import torch

    import nemo_speech.collections.asr as nemo_asr

    labels = list("abcdefghijklmnopqrstuvwxyz '")
    modules = 'nemo.collections.asr.modules'
    torch.manual_seed(0)
    model = nemo_asr.models.EncDecCTCModel(
        {
            'preprocessor': {'_target_': f'{modules}.AudioToMelSpectrogramPreprocessor', 'features': 16},
            'encoder': {
                **{'_target_': f'{modules}.ConformerEncoder', 'feat_in': 16, 'n_layers': 1, 'd_model': 8},
                **{
                    'subsampling': 'dw_striding',
                    'subsampling_factor': 8,
                    'subsampling_conv_channels': 4,
                    'n_heads': 2,
                },
            },
            'decoder': {'_target_': f'{modules}.ConvASRDecoder', 'feat_in': 8, 'num_classes': len(labels)},
            'labels': labels,
        }
    )
    model.save_to(path)
    return labels
