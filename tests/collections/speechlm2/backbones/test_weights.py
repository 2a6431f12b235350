"""Loading and exporting: bit-exact, strict, and clear about what is wrong."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from nemo_speech.collections.speechlm2.backbones import MegatronBackbone, load_backbone, saving
from nemo_speech.core.errors import CheckpointError, ConfigError, ModelNotFoundError
from tests.collections.speechlm2.backbones.conftest import MODELS, SHAPE


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=['float32', 'bfloat16'])
@pytest.mark.parametrize('name', ['llama', 'qwen2', 'qwen3-tied'])
def test_export_is_bit_exact(name, dtype, backend, model_dir, tmp_path):
    load_backbone(model_dir(name), backend, dtype=dtype).export_hf(tmp_path)
    before, after = (load_file(d / 'model.safetensors') for d in (model_dir(name), tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key].to(dtype), after[key]) for key in before)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == dtype


@pytest.mark.parametrize('name', MODELS)
def test_names_and_state_equal_transformers(name, model_dir):
    ours, theirs = (load_backbone(model_dir(name), backend, lora={'r': 2}) for backend in ('megatron', 'hf'))
    assert {k: v.shape for k, v in ours.hf_state_dict()} == {k: v.shape for k, v in theirs.hf_state_dict()}
    names = [sorted(n for names in b.hf_parameter_names().values() for n in names) for b in (ours, theirs)]
    assert names[0] == names[1]
    assert list(ours.hf_parameter_names()) == [name for name, _ in ours.named_parameters()]
    assert list(theirs.hf_parameter_names()) == [name for name, _ in theirs.named_parameters()]


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_state_dict_round_trip_is_strict(backend, model_dir):
    backbone = load_backbone(model_dir('qwen3'), backend, pretrained_weights=False)
    state = dict(load_backbone(model_dir('qwen3')).hf_state_dict())
    backbone.load_hf_state_dict(state)
    assert all(torch.equal(state[name], tensor) for name, tensor in backbone.hf_state_dict())
    missing = {name: tensor for name, tensor in state.items() if 'layers.1.mlp.up' not in name}
    with pytest.raises(CheckpointError, match=r'1 missing: model\.layers\.1\.mlp\.up_proj\.weight'):
        backbone.load_hf_state_dict(missing)
    with pytest.raises(CheckpointError, match='1 unexpected: extra'):
        backbone.load_hf_state_dict(state | {'extra': torch.ones(1)})
    with pytest.raises(CheckpointError, match='model.norm.weight'):
        backbone.load_hf_state_dict(state | {'model.norm.weight': torch.ones(5)})
    backbone.load_hf_state_dict(missing, strict=False)


def test_shards_are_written_and_read(model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, 'MAX_SHARD_BYTES', 20_000)
    load_backbone(model_dir('llama')).export_hf(tmp_path)
    index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
    files = set(index['weight_map'].values())
    assert len(files) > 1 and all((tmp_path / file).is_file() for file in files)
    state = dict(load_backbone(model_dir('llama')).hf_state_dict())
    for backend in ('megatron', 'hf'):
        assert all(torch.equal(state[k], v) for k, v in load_backbone(tmp_path, backend).hf_state_dict())
    (tmp_path / sorted(files)[0]).unlink()
    with pytest.raises(ModelNotFoundError, match=sorted(files)[0]):
        load_backbone(tmp_path)


def test_torch_files_are_read_without_running_code(model_dir, tmp_path):
    shutil.copy(model_dir('llama') / 'config.json', tmp_path)
    torch.save(load_file(model_dir('llama') / 'model.safetensors'), tmp_path / 'pytorch_model.bin')
    state = dict(load_backbone(model_dir('llama')).hf_state_dict())
    assert all(torch.equal(state[k], v) for k, v in load_backbone(tmp_path).hf_state_dict())
    torch.save({'evil': print}, tmp_path / 'pytorch_model.bin')
    with pytest.raises(CheckpointError, match='pytorch_model.bin'):
        load_backbone(tmp_path)


def test_old_config_keys_are_read(model_dir, tmp_path):
    config = json.loads((model_dir('llama') / 'config.json').read_text())
    rope = config.pop('rope_parameters')
    config['rope_theta'] = 500.0
    (tmp_path / 'config.json').write_text(json.dumps(config))
    shutil.copy(model_dir('llama') / 'model.safetensors', tmp_path)
    assert rope['rope_theta'] != 500.0
    ids = torch.arange(20)[None]
    ours, theirs = (load_backbone(tmp_path, backend).eval() for backend in ('megatron', 'hf'))
    torch.testing.assert_close(ours.logits(ours.embed(ids)), theirs.logits(theirs.embed(ids)), atol=1e-4, rtol=0)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_missing_models_say_what_was_looked_for(backend, tmp_path, monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    with pytest.raises(ModelNotFoundError, match="no model 'nobody/has-this'.*not a directory here"):
        load_backbone('nobody/has-this', backend)
    with pytest.raises(ModelNotFoundError, match='no model'):
        load_backbone(tmp_path / 'absent', backend)
    with pytest.raises(ModelNotFoundError, match='holds no config.json .it holds nothing'):
        load_backbone(tmp_path, backend)
    (tmp_path / 'tokenizer.json').write_text('{}')
    with pytest.raises(ModelNotFoundError, match='only a tokenizer'):
        load_backbone(tmp_path, backend)
    with pytest.raises(ModelNotFoundError, match='GGUF'):
        load_backbone(tmp_path / 'model.gguf', backend)
    with pytest.raises(ModelNotFoundError, match='is a file'):
        load_backbone(tmp_path / 'tokenizer.json', backend)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_broken_weights_are_named(backend, model_dir, tmp_path):
    shutil.copy(model_dir('llama') / 'config.json', tmp_path)
    if backend == 'megatron':
        with pytest.raises(ModelNotFoundError, match='no weights'):
            load_backbone(tmp_path, backend)
    (tmp_path / 'model.safetensors').write_bytes(b'not safetensors at all')
    with pytest.raises(CheckpointError, match='corrupt'):
        load_backbone(tmp_path, backend)
    state = load_file(model_dir('llama') / 'model.safetensors')
    del state['model.layers.1.self_attn.k_proj.weight']
    save_file(state, tmp_path / 'model.safetensors', {'format': 'pt'})
    with pytest.raises(CheckpointError, match=r'layers\.1\.self_attn\.k_proj'):
        load_backbone(tmp_path, backend)
    for wrong in ('{"model_type": "no-such-model"}', '{"model_type": "llama", "hidden_size": "wide"}'):
        (tmp_path / 'config.json').write_text(wrong)
        with pytest.raises(CheckpointError, match='config.json'):
            load_backbone(tmp_path, backend)


def test_unsupported_architectures_point_to_the_other_backend(tmp_path):
    with pytest.raises(ConfigError, match="'gpt2'.*supported: llama, mistral, qwen2, qwen3.*backend=\"hf\""):
        MegatronBackbone(GPT2Config())
    with pytest.raises(ConfigError, match='mlp_bias'):
        MegatronBackbone(LlamaConfig(**SHAPE, mlp_bias=True))
    with pytest.raises(ConfigError, match='RoPE'):
        MegatronBackbone(
            LlamaConfig(**SHAPE, rope_parameters={'rope_type': 'dynamic', 'factor': 2.0, 'rope_theta': 1e4})
        )


def test_backend_and_dtype_are_checked(model_dir):
    with pytest.raises(ConfigError, match='megatron, hf'):
        load_backbone(model_dir('llama'), 'nemo')
    with pytest.raises(ConfigError, match='float33'):
        load_backbone(model_dir('llama'), dtype='float33')
    assert load_backbone(model_dir('llama'), dtype='bfloat16').dtype == torch.bfloat16


def test_random_weights_have_the_models_scale(model_dir):
    torch.manual_seed(0)
    ours = load_backbone(model_dir('llama'), pretrained_weights=False)
    state = dict(ours.hf_state_dict())
    assert 0.15 < state['model.embed_tokens.weight'].std() < 0.25
    assert torch.equal(state['model.norm.weight'], torch.ones(32))
    assert torch.isfinite(ours.logits(ours.embed(torch.arange(9)[None]))).all()


def test_builds_on_the_meta_device(model_dir):
    from transformers import AutoConfig

    with torch.device('meta'):
        backbone = MegatronBackbone(AutoConfig.from_pretrained(model_dir('qwen3')))
        backbone.apply_lora({'r': 2})
    assert {parameter.device.type for parameter in backbone.parameters()} == {'meta'}


def test_two_backbones_live_in_one_process(model_dir):
    assert not torch.distributed.is_initialized()
    first, second = load_backbone(model_dir('llama')), load_backbone(model_dir('qwen3-tied'))
    ids = torch.arange(9)[None]
    before = first.logits(first.embed(ids))
    second.logits(second.embed(ids))
    assert torch.equal(first.logits(first.embed(ids)), before)
    assert not torch.distributed.is_initialized()
