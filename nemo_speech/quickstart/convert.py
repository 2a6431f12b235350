"""CTranslate2 Whisper and GGUF Llama to ordinary Hugging Face directories in float32.

bfloat16 products run about 80 times slower than float32 on the CPUs this was measured on, hence float32.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nemo_speech.core.errors import CheckpointError, MissingDependencyError
from nemo_speech.quickstart.ctranslate2 import CTranslate2Model, read_ctranslate2

if TYPE_CHECKING:
    import torch

MULTILINGUAL_VOCAB_SIZE = 51865
NUM_TIMESTAMPS = 1501


def whisper_from_ctranslate2(source: Path, target: Path) -> None:
    """Write the Whisper model in the CTranslate2 directory `source` as a Hugging Face directory.

    Args:
        source: Directory with `model.bin`, `config.json` and `tokenizer.json`; weights float32, float16 or bfloat16.
        target: Directory to write: whole model with decoder, feature extractor, tokenizer.

    Raises:
        CheckpointError: Not a Whisper model, quantised weights, or weights missing.
    """
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperProcessor

    model_file = source / 'model.bin'
    model = read_ctranslate2(model_file)
    if model.spec != 'WhisperSpec':
        raise CheckpointError(f'{model_file} holds a {model.spec}; expected a WhisperSpec.')
    extra = json.loads((source / 'config.json').read_text(encoding='utf-8'))
    tokenizer = _whisper_tokenizer(source / 'tokenizer.json')
    config = _whisper_config(model, model_file, tokenizer)
    whisper = WhisperForConditionalGeneration(config)
    weights = _whisper_state_dict(_Weights(model, model_file), config.encoder_layers, config.decoder_layers)
    whisper.load_state_dict(weights, strict=True)
    whisper.generation_config = _whisper_generation_config(config, tokenizer, extra)
    whisper.save_pretrained(target)
    features = WhisperFeatureExtractor(feature_size=config.num_mel_bins)
    WhisperProcessor(features, tokenizer).save_pretrained(target)
    features.save_pretrained(target)


def _whisper_tokenizer(path: Path):
    from transformers import WhisperTokenizer

    return WhisperTokenizer(tokenizer_file=str(path), pad_token='<|endoftext|>')


class _Weights:
    """Variables of a CTranslate2 file as float32 tensors, by name."""

    def __init__(self, model: CTranslate2Model, path: Path):
        self.variables, self.path = model.variables, path

    def array(self, name: str) -> np.ndarray:
        if name not in self.variables:
            raise CheckpointError(f'{self.path} lacks the variable {name!r}; is it a whole Whisper model?')
        return self.variables[name]

    def __getitem__(self, name: str) -> torch.Tensor:
        import torch

        values = self.array(name)
        if values.dtype.kind != 'f':
            raise CheckpointError(
                f'{self.path}: {name} is quantised ({values.dtype}). Take a float16 or float32 conversion of it.'
            )
        return torch.from_numpy(values.astype(np.float32))


def _whisper_config(model: CTranslate2Model, path: Path, tokenizer):
    from transformers import WhisperConfig

    weights = _Weights(model, path)
    d_model, num_mels, _ = weights.array('encoder/conv1/weight').shape
    end, start = tokenizer.convert_tokens_to_ids(['<|endoftext|>', '<|startoftranscript|>'])
    return WhisperConfig(
        vocab_size=weights.array('decoder/embeddings/weight').shape[0],
        num_mel_bins=num_mels,
        d_model=d_model,
        encoder_layers=_count_layers(model.variables, 'encoder'),
        decoder_layers=_count_layers(model.variables, 'decoder'),
        encoder_attention_heads=int(weights.array('encoder/num_heads')),
        decoder_attention_heads=int(weights.array('decoder/num_heads')),
        encoder_ffn_dim=weights.array('encoder/layer_0/ffn/linear_0/weight').shape[0],
        decoder_ffn_dim=weights.array('decoder/layer_0/ffn/linear_0/weight').shape[0],
        max_source_positions=weights.array('encoder/position_encodings/encodings').shape[0],
        max_target_positions=weights.array('decoder/position_encodings/encodings').shape[0],
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=None,  # these belong to the generation config
        begin_suppress_tokens=None,
    )


def _count_layers(variables: Mapping[str, np.ndarray], part: str) -> int:
    pattern = re.compile(rf'{part}/layer_(\d+)/')
    return len({match[1] for match in map(pattern.match, variables) if match})


def _whisper_generation_config(config, tokenizer, extra: Mapping):
    from transformers import GenerationConfig

    no_timestamps, previous = tokenizer.convert_tokens_to_ids(['<|notimestamps|>', '<|startofprev|>'])
    settings = {
        'bos_token_id': config.bos_token_id,
        'eos_token_id': config.eos_token_id,
        'pad_token_id': config.pad_token_id,
        'decoder_start_token_id': config.decoder_start_token_id,
        'max_length': config.max_target_positions,
        'no_timestamps_token_id': no_timestamps,
        'prev_sot_token_id': previous,
        'max_initial_timestamp_index': 50,
        'return_timestamps': False,
        'suppress_tokens': extra.get('suppress_ids'),
        'begin_suppress_tokens': extra.get('suppress_ids_begin'),
        'alignment_heads': extra.get('alignment_heads'),
        'is_multilingual': config.vocab_size >= MULTILINGUAL_VOCAB_SIZE,
    }
    if settings['is_multilingual']:
        tokens = tokenizer.convert_ids_to_tokens(extra.get('lang_ids', []))
        settings['lang_to_id'] = dict(zip(tokens, extra.get('lang_ids', [])))
        settings['task_to_id'] = {
            task: tokenizer.convert_tokens_to_ids(f'<|{task}|>') for task in ('transcribe', 'translate')
        }
    return GenerationConfig(**{key: value for key, value in settings.items() if value is not None})


def _whisper_state_dict(weights: _Weights, encoder_layers: int, decoder_layers: int) -> dict[str, torch.Tensor]:
    """Hugging Face names to tensors; CTranslate2 stacks q, k, v of self-attention and k, v of cross-attention."""
    state = {}

    def norm(target: str, source: str) -> None:
        state[f'{target}.weight'], state[f'{target}.bias'] = weights[f'{source}/gamma'], weights[f'{source}/beta']

    def linear(target: str, source: str) -> None:
        state[f'{target}.weight'], state[f'{target}.bias'] = weights[f'{source}/weight'], weights[f'{source}/bias']

    def stacked(target: str, names: str, source: str) -> None:
        weight, bias = weights[f'{source}/weight'].chunk(len(names)), weights[f'{source}/bias'].chunk(len(names))
        for i, name in enumerate(names):
            state[f'{target}.{name}_proj.weight'] = weight[i].clone()
            if name != 'k':  # Whisper's key projection has no bias; the stored one is zero
                state[f'{target}.{name}_proj.bias'] = bias[i].clone()

    linear('model.encoder.conv1', 'encoder/conv1')
    linear('model.encoder.conv2', 'encoder/conv2')
    state['model.decoder.embed_tokens.weight'] = weights['decoder/embeddings/weight']
    state['proj_out.weight'] = state['model.decoder.embed_tokens.weight']
    for part, num_layers in (('encoder', encoder_layers), ('decoder', decoder_layers)):
        state[f'model.{part}.embed_positions.weight'] = weights[f'{part}/position_encodings/encodings']
        norm(f'model.{part}.layer_norm', f'{part}/layer_norm')
        for i in range(num_layers):
            source, target = f'{part}/layer_{i}', f'model.{part}.layers.{i}'
            stacked(f'{target}.self_attn', 'qkv', f'{source}/self_attention/linear_0')
            linear(f'{target}.self_attn.out_proj', f'{source}/self_attention/linear_1')
            norm(f'{target}.self_attn_layer_norm', f'{source}/self_attention/layer_norm')
            linear(f'{target}.fc1', f'{source}/ffn/linear_0')
            linear(f'{target}.fc2', f'{source}/ffn/linear_1')
            norm(f'{target}.final_layer_norm', f'{source}/ffn/layer_norm')
            if part == 'decoder':
                linear(f'{target}.encoder_attn.q_proj', f'{source}/attention/linear_0')
                stacked(f'{target}.encoder_attn', 'kv', f'{source}/attention/linear_1')
                linear(f'{target}.encoder_attn.out_proj', f'{source}/attention/linear_2')
                norm(f'{target}.encoder_attn_layer_norm', f'{source}/attention/layer_norm')
    return state


def llm_from_gguf(source: Path, target: Path) -> None:
    """Write the GGUF file `source` as a Hugging Face directory in float32, with tokenizer and chat template.

    Raises:
        MissingDependencyError: `gguf` or `accelerate`, which transformers' reader needs, is not installed.
        CheckpointError: transformers cannot read the file.
    """
    import importlib.util

    missing = [name for name in ('gguf', 'accelerate') if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f'Reading {source} needs {missing}: pip install "nemo_speech[quickstart]"')
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = str(source.parent)
    how = {'gguf_file': source.name, 'local_files_only': True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **how)
        quantised = AutoModelForCausalLM.from_pretrained(where, **how, dtype=torch.float32)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f'{source} cannot be read as a GGUF language model: {error}') from error
    # save_pretrained refuses on the loaded object ("quantized with gguf"), though its weights are plain float32 now.
    values = quantised.config.to_dict()
    config = type(quantised.config)(**{k: v for k, v in values.items() if k not in ('quantization_config', 'dtype')})
    with torch.device('meta'):
        plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict(), strict=True, assign=True)
    plain.generation_config = quantised.generation_config
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)
