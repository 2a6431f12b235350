"""LoRA: the same numbers as peft on transformers' model, in peft's files."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM

from nemo_speech.collections.speechlm2.backbones import load_backbone
from nemo_speech.core.errors import CheckpointError, ConfigError, ModelNotFoundError

CONFIGS = {
    'qv': {'r': 4, 'lora_alpha': 8, 'target_modules': ['q_proj', 'v_proj']},
    'default-targets': {'r': 4},
    'every-projection': {'r': 3, 'target_modules': 'all-linear'},
    'k-only': {'r': 2, 'target_modules': ['k_proj']},
    'gate-and-o': {'r': 2, 'target_modules': ['gate_proj', 'o_proj']},
    'regex': {'r': 2, 'target_modules': r'model\.layers\.1\..*\.(up|down)_proj'},
    'rslora': {'r': 4, 'lora_alpha': 6, 'use_rslora': True, 'target_modules': ['q_proj', 'o_proj']},
    'patterns': {
        'r': 4,
        'target_modules': ['q_proj', 'k_proj', 'v_proj'],
        'rank_pattern': {'k_proj': 2},
        'alpha_pattern': {r'layers\.1\.self_attn\.q_proj': 32},
    },
    'some-layers': {'r': 2, 'target_modules': ['q_proj', 'up_proj'], 'layers_to_transform': [1]},
    'excluded': {
        'r': 2,
        'target_modules': ['q_proj', 'v_proj'],
        'exclude_modules': ['model.layers.0.self_attn.q_proj'],
    },
}


def _randomised(state: dict) -> dict:
    generator = torch.Generator().manual_seed(0)
    return {name: 0.3 * torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}


@pytest.mark.parametrize('name', CONFIGS)
def test_logits_and_gradients_equal_pefts(name, model_dir, prompts):
    ids, mask = prompts
    ours = load_backbone(model_dir('qwen2'), lora=CONFIGS[name])
    theirs = load_backbone(model_dir('qwen2'), 'hf', lora=CONFIGS[name])
    assert set(ours.adapter_state_dict()) == set(theirs.adapter_state_dict())
    state = _randomised(ours.adapter_state_dict())
    results = []
    for backbone in (ours, theirs):
        backbone.load_adapter_state_dict(state)
        embeds = backbone.embed(ids).detach()
        backbone.loss(embeds, ids.roll(-1, 1), mask).loss_sum.backward()
        names = backbone.hf_parameter_names()
        gradients = {names[n][0]: p.grad for n, p in backbone.named_parameters() if p.requires_grad}
        results.append((backbone.logits(embeds, mask)[mask].detach(), gradients))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-4, rtol=0)
    assert results[0][1].keys() == results[1][1].keys() == state.keys()
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_saved_adapter_is_a_plain_peft_adapter(backend, model_dir, prompts, tmp_path):
    ids, _ = prompts
    backbone = load_backbone(model_dir('llama'), backend, lora=CONFIGS['patterns'])
    backbone.load_adapter_state_dict(_randomised(backbone.adapter_state_dict()))
    backbone.save_adapter(tmp_path)
    reference = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_dir('llama')), tmp_path).eval()
    fresh = load_backbone(model_dir('llama'), 'megatron')
    fresh.load_adapter(tmp_path)
    with torch.no_grad():
        expected = reference(ids).logits
        for loaded in (backbone.eval(), fresh.eval()):
            torch.testing.assert_close(loaded.logits(loaded.embed(ids)), expected, atol=1e-4, rtol=0)
    assert any(parameter.requires_grad for parameter in fresh.parameters())


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_adapter_of_peft_loads(backend, model_dir, prompts, tmp_path):
    import peft

    base = AutoModelForCausalLM.from_pretrained(model_dir('qwen3'))
    config = LoraConfig(r=3, target_modules=['v_proj', 'down_proj'], init_lora_weights=False)
    theirs = peft.get_peft_model(base, config).eval()
    theirs.save_pretrained(tmp_path)
    backbone = load_backbone(model_dir('qwen3'), backend).eval()
    backbone.load_adapter(tmp_path)
    with torch.no_grad():
        logits = backbone.eval().logits(backbone.embed(prompts[0]))
        torch.testing.assert_close(logits, theirs(prompts[0]).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_merging_keeps_the_logits_and_exports(backend, model_dir, prompts, tmp_path):
    ids, _ = prompts
    backbone = load_backbone(model_dir('qwen2'), backend, lora=CONFIGS['every-projection']).eval()
    backbone.load_adapter_state_dict(_randomised(backbone.adapter_state_dict()))
    before = {name: tensor for name, tensor in backbone.hf_state_dict()}
    with torch.no_grad():
        expected = backbone.logits(backbone.embed(ids))
        backbone.merge_adapter()
        backbone.merge_adapter()
        torch.testing.assert_close(backbone.logits(backbone.embed(ids)), expected, atol=1e-4, rtol=0)
        backbone.export_hf(tmp_path)
        merged = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        torch.testing.assert_close(merged(ids).logits, expected, atol=1e-4, rtol=0)
        backbone.unmerge_adapter()
        torch.testing.assert_close(backbone.logits(backbone.embed(ids)), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(dict(backbone.hf_state_dict()), before, atol=1e-6, rtol=0)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('is_merged', [False, True])
def test_disable_adapter_is_the_base_model(backend, is_merged, model_dir, prompts):
    ids, _ = prompts
    base = load_backbone(model_dir('llama'), backend).eval()
    backbone = load_backbone(model_dir('llama'), backend, lora=CONFIGS['qv']).eval()
    backbone.load_adapter_state_dict(_randomised(backbone.adapter_state_dict()))
    if is_merged:
        backbone.merge_adapter()
    with torch.no_grad(), backbone.disable_adapter():
        torch.testing.assert_close(
            backbone.logits(backbone.embed(ids)), base.logits(base.embed(ids)), atol=1e-5, rtol=0
        )
        disabled = backbone.generate(input_ids=ids, max_new_tokens=4)
    assert disabled.tolist() == base.generate(input_ids=ids, max_new_tokens=4).tolist()
    assert not torch.allclose(backbone.logits(backbone.embed(ids)), base.logits(base.embed(ids)), atol=1e-2)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_generation_uses_the_adapter(backend, model_dir, prompts):
    ids, mask = prompts
    backbone = load_backbone(model_dir('llama'), backend, lora=CONFIGS['every-projection'])
    backbone.load_adapter_state_dict(_randomised(backbone.adapter_state_dict()))
    new = backbone.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6)
    backbone.merge_adapter()
    assert backbone.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6).tolist() == new.tolist()


def test_only_lora_trains_and_starts_as_the_base_model(model_dir, prompts):
    ids, _ = prompts
    base = load_backbone(model_dir('llama'))
    backbone = load_backbone(model_dir('llama'), lora=CONFIGS['qv'])
    trainable = [name for name, parameter in backbone.named_parameters() if parameter.requires_grad]
    assert trainable and all('lora_' in name for name in trainable)
    torch.testing.assert_close(backbone.logits(backbone.embed(ids)), base.logits(base.embed(ids)), atol=1e-5, rtol=0)


def test_dropout_acts_in_training_only(model_dir, prompts):
    ids, _ = prompts
    lora = CONFIGS['qv'] | {'lora_dropout': 0.5, 'init_lora_weights': False}
    backbone = load_backbone(model_dir('llama'), lora=lora)
    embeds = backbone.embed(ids).detach()
    evaluated = [backbone.eval().logits(embeds) for _ in range(2)]
    trained = [backbone.train().logits(embeds) for _ in range(2)]
    assert torch.equal(*evaluated) and not torch.allclose(*trained)


@pytest.mark.parametrize(
    'lora, words',
    [
        ({'rank': 4}, 'lora.rank is not a key'),
        ({'r': 4, 'lora_alfa': 4}, "did you mean 'lora_alpha'"),
        ({'use_dora': True}, 'use_dora=True'),
        ({'bias': 'all'}, "bias='all'"),
        ({'target_modules': ['lm_head', 'q_proj']}, 'no LoRA for lm_head'),
        ({'target_modules': ['query']}, 'matches nothing'),
        ({'init_lora_weights': 'pissa'}, 'init_lora_weights'),
        ({'modules_to_save': ['lm_head']}, 'modules_to_save'),
        ({'r': 0}, 'positive integers'),
        ({'r': 2, 'task_type': 'SEQ_CLS'}, "lora.task_type: expected 'CAUSAL_LM', got 'SEQ_CLS'"),
        ({'r': 2, 'lora_dropout': 1.0}, 'lora.lora_dropout: expected a number from 0 to below 1, got 1.0'),
        ({'r': 2, 'lora_dropout': 'no'}, "lora.lora_dropout: expected a number from 0 to below 1, got 'no'"),
        ({'r': 2, 'layers_to_transform': [0], 'target_modules': '.*q_proj'}, 'peft refuses'),
    ],
)
def test_unsupported_options_are_named(lora, words, model_dir):
    with pytest.raises(ConfigError, match=words):
        load_backbone(model_dir('llama'), lora=lora)


def test_adapter_errors_are_named(model_dir, tmp_path):
    backbone = load_backbone(model_dir('llama'), lora=CONFIGS['qv'])
    with pytest.raises(ConfigError, match='has LoRA already'):
        backbone.apply_lora(CONFIGS['qv'])
    with pytest.raises(ModelNotFoundError, match='adapter_config.json'):
        backbone.load_adapter(tmp_path)
    state = backbone.adapter_state_dict()
    name, _ = state.popitem()
    with pytest.raises(CheckpointError, match=name):
        backbone.load_adapter_state_dict(state)
    other = load_backbone(model_dir('llama'), lora={'r': 2, 'target_modules': ['q_proj']})
    other.save_adapter(tmp_path)
    with pytest.raises(CheckpointError, match='other LoRA settings'):
        backbone.load_adapter(tmp_path)
    with pytest.raises(ConfigError, match='no LoRA adapter'):
        load_backbone(model_dir('llama')).save_adapter(tmp_path)


def test_a_backbone_with_lora_can_be_copied(model_dir, prompts):
    backbone = load_backbone(model_dir('llama'), lora=CONFIGS['qv'])
    twin = copy.deepcopy(backbone)
    assert twin.generate(input_ids=prompts[0], max_new_tokens=3).shape == (3, 3)
