"""Writes CTranslate2's `model.bin`, so that its reader can be tried on files that are right, cut and forged."""

import struct
from pathlib import Path

import numpy as np

DTYPE_IDS = {'float32': 0, 'int8': 1, 'int16': 2, 'int32': 3, 'float16': 4}


def string(text: str) -> bytes:
    raw = text.encode() + b'\0'
    return struct.pack('<H', len(raw)) + raw


def variable(name: str, values: np.ndarray) -> bytes:
    dims = struct.pack(f'<B{values.ndim}I', values.ndim, *values.shape)
    return string(name) + dims + struct.pack('<BI', DTYPE_IDS[values.dtype.name], values.nbytes) + values.tobytes()


def write_model(
    path: Path, variables: dict[str, np.ndarray], aliases: dict[str, str] | None = None, spec: str = 'WhisperSpec'
) -> Path:
    """Write a version 6 model file."""
    parts = [struct.pack('<I', 6), string(spec), struct.pack('<II', 3, len(variables))]
    parts += [variable(name, values) for name, values in variables.items()]
    parts.append(struct.pack('<I', len(aliases or {})))
    parts += [string(alias) + string(target) for alias, target in (aliases or {}).items()]
    path.write_bytes(b''.join(parts))
    return path


def whisper_variables(model) -> dict[str, np.ndarray]:
    """The weights of a transformers Whisper under CTranslate2's names, in float16."""
    state = {name: value.numpy().astype(np.float16) for name, value in model.state_dict().items()}
    config = model.config
    out = {
        'encoder/num_heads': np.int16(config.encoder_attention_heads).reshape(()),
        'decoder/num_heads': np.int16(config.decoder_attention_heads).reshape(()),
        'decoder/embeddings/weight': state['model.decoder.embed_tokens.weight'],
    }

    def copy(source: str, target: str, names: tuple[str, str]) -> None:
        out[f'{target}/{names[0]}'], out[f'{target}/{names[1]}'] = state[f'{source}.weight'], state[f'{source}.bias']

    def stack(source: str, target: str, parts: str) -> None:
        biases = {part: state.get(f'{source}.{part}_proj.bias') for part in parts}
        zero = np.zeros(config.d_model, np.float16)
        out[f'{target}/weight'] = np.concatenate([state[f'{source}.{part}_proj.weight'] for part in parts])
        out[f'{target}/bias'] = np.concatenate([zero if biases[p] is None else biases[p] for p in parts])

    linear, norm = ('weight', 'bias'), ('gamma', 'beta')
    for conv in ('conv1', 'conv2'):
        copy(f'model.encoder.{conv}', f'encoder/{conv}', linear)
    for part, num_layers in (('encoder', config.encoder_layers), ('decoder', config.decoder_layers)):
        out[f'{part}/position_encodings/encodings'] = state[f'model.{part}.embed_positions.weight']
        copy(f'model.{part}.layer_norm', f'{part}/layer_norm', norm)
        for i in range(num_layers):
            ours, theirs = f'model.{part}.layers.{i}', f'{part}/layer_{i}'
            stack(f'{ours}.self_attn', f'{theirs}/self_attention/linear_0', 'qkv')
            copy(f'{ours}.self_attn.out_proj', f'{theirs}/self_attention/linear_1', linear)
            copy(f'{ours}.self_attn_layer_norm', f'{theirs}/self_attention/layer_norm', norm)
            copy(f'{ours}.fc1', f'{theirs}/ffn/linear_0', linear)
            copy(f'{ours}.fc2', f'{theirs}/ffn/linear_1', linear)
            copy(f'{ours}.final_layer_norm', f'{theirs}/ffn/layer_norm', norm)
            if part == 'decoder':
                copy(f'{ours}.encoder_attn.q_proj', f'{theirs}/attention/linear_0', linear)
                stack(f'{ours}.encoder_attn', f'{theirs}/attention/linear_1', 'kv')
                copy(f'{ours}.encoder_attn.out_proj', f'{theirs}/attention/linear_2', linear)
                copy(f'{ours}.encoder_attn_layer_norm', f'{theirs}/attention/layer_norm', norm)
    return out
