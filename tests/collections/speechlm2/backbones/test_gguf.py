"""GGUF files, written here the way llama.cpp's converter does, are read through transformers."""

import pytest
import torch
from safetensors.torch import load_file

from nemo_speech.collections.speechlm2.backbones import load_backbone
from nemo_speech.core.errors import CheckpointError
from tests.collections.speechlm2.backbones.conftest import SHAPE

gguf = pytest.importorskip('gguf', reason='the gguf package (nemo_speech[hf]) is not installed')

NAMES = {
    'input_layernorm': 'attn_norm',
    'post_attention_layernorm': 'ffn_norm',
    'self_attn.q_proj': 'attn_q',
    'self_attn.k_proj': 'attn_k',
    'self_attn.v_proj': 'attn_v',
    'self_attn.o_proj': 'attn_output',
    'mlp.gate_proj': 'ffn_gate',
    'mlp.up_proj': 'ffn_up',
    'mlp.down_proj': 'ffn_down',
}


def _gguf_name(name: str) -> str:
    outer = {'model.embed_tokens': 'token_embd', 'model.norm': 'output_norm', 'lm_head': 'output'}
    stem = name.removesuffix('.weight')
    if stem in outer:
        return f'{outer[stem]}.weight'
    _, _, index, rest = stem.split('.', 3)
    return f'blk.{index}.{NAMES[rest]}.weight'


def _interleave_halves(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """llama.cpp rotates neighbouring pairs where Hugging Face rotates halves."""
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


@pytest.fixture
def gguf_file(model_dir, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / 'tiny.gguf', 'llama')
    writer.add_block_count(SHAPE['num_hidden_layers'])
    writer.add_context_length(SHAPE['max_position_embeddings'])
    writer.add_embedding_length(SHAPE['hidden_size'])
    writer.add_feed_forward_length(SHAPE['intermediate_size'])
    writer.add_head_count(SHAPE['num_attention_heads'])
    writer.add_head_count_kv(SHAPE['num_key_value_heads'])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(SHAPE['vocab_size'])
    for name, weight in load_file(model_dir('llama') / 'model.safetensors').items():
        for part, heads in (('q_proj', 'num_attention_heads'), ('k_proj', 'num_key_value_heads')):
            if part in name:
                weight = _interleave_halves(weight, SHAPE[heads])
        writer.add_tensor(_gguf_name(name), weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / 'tiny.gguf'


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_gguf_gives_the_same_model(backend, gguf_file, model_dir):
    ids = torch.arange(20)[None]
    read, original = load_backbone(gguf_file, backend).eval(), load_backbone(model_dir('llama'), backend).eval()
    torch.testing.assert_close(read.logits(read.embed(ids)), original.logits(original.embed(ids)), atol=1e-4, rtol=0)


def test_a_corrupt_gguf_is_named(tmp_path):
    (tmp_path / 'bad.gguf').write_bytes(b'no such thing' * 10)
    with pytest.raises(CheckpointError, match='bad.gguf'):
        load_backbone(tmp_path / 'bad.gguf')
