"""Every way of decoding gives the same tokens on both backbones: transformers decides, the logits are ours."""

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList, MinNewTokensLengthLogitsProcessor

from nemo_speech.collections.speechlm2.backbones import load_backbone
from nemo_speech.collections.speechlm2.backbones.generation import make_request

WAYS = {
    'greedy': {'do_sample': False},
    'greedy-without-cache': {'do_sample': False, 'use_cache': False},
    'beam': {'num_beams': 3, 'do_sample': False},
    'beam-length-penalty': {'num_beams': 2, 'length_penalty': 2.0, 'early_stopping': True},
    'temperature': {'do_sample': True, 'temperature': 0.7},
    'top-k': {'do_sample': True, 'top_k': 5},
    'top-p': {'do_sample': True, 'top_p': 0.8},
    'repetition-penalty': {'repetition_penalty': 1.5},
    'no-repeat-ngram': {'no_repeat_ngram_size': 2},
    'min-new-tokens': {'min_new_tokens': 6, 'eos_token_id': [2, 40, 41, 42, 43, 44]},
    'several-stop-tokens': {'eos_token_id': list(range(30, 60))},
    'sampling-beam': {'do_sample': True, 'num_beams': 2},
    'static-cache': {'cache_implementation': 'static'},
    'several-per-prompt': {'do_sample': True, 'num_return_sequences': 2},
}


@pytest.mark.parametrize('way', WAYS)
def test_both_backbones_generate_the_same(way, model_dir, prompts):
    ids, mask = prompts
    outputs = []
    for backend in ('megatron', 'hf'):
        backbone = load_backbone(model_dir('qwen3-tied'), backend)
        torch.manual_seed(0)
        outputs.append(backbone.generate(backbone.embed(ids), mask, max_new_tokens=10, **WAYS[way]))
    assert outputs[0].tolist() == outputs[1].tolist()


def test_the_short_way_gives_what_transformers_gives(model_dir, prompts):
    ids, mask = prompts
    backbone = load_backbone(model_dir('llama'))
    eos = list(range(20, 40))
    options = {'max_new_tokens': 12, 'eos_token_id': eos}
    short = backbone.generate(input_ids=ids, attention_mask=mask, **options)
    through = backbone.generate(
        input_ids=ids, attention_mask=mask, logits_processor=LogitsProcessorList(), streamer=None, **options
    )
    assert short.tolist() == through.tolist()
    assert any(token in eos for token in short.flatten().tolist())


def test_processors_of_the_caller_run(model_dir, prompts):
    ids, _ = prompts
    backbone = load_backbone(model_dir('llama'))
    processor = MinNewTokensLengthLogitsProcessor(ids.shape[1], 5, list(range(95)))
    new = backbone.generate(input_ids=ids, max_new_tokens=5, logits_processor=LogitsProcessorList([processor]))
    assert (new[:, :4] == 95).all()


@pytest.mark.parametrize(
    'options, expected',
    [
        ({'max_new_tokens': 3}, True),
        ({'max_new_tokens': 3, 'num_beams': 1, 'repetition_penalty': 1.0, 'temperature': 0.2}, True),
        ({}, False),
        ({'max_new_tokens': 3, 'do_sample': True}, False),
        ({'max_new_tokens': 3, 'num_beams': 2}, False),
        ({'max_new_tokens': 3, 'stop_strings': ['x']}, False),
        ({'max_new_tokens': 3, 'min_new_tokens': 2}, False),
        ({'max_new_tokens': 3, 'bad_words_ids': [[5]]}, False),
        ({'max_new_tokens': 3, 'stopping_criteria': []}, False),
    ],
)
def test_only_plain_greedy_takes_the_short_way(options, expected):
    ids = torch.ones(1, 2, dtype=torch.long)
    assert make_request(GenerationConfig(), None, ids, None, None, options).is_plain_greedy is expected


def test_a_models_own_defaults_fill_what_the_caller_leaves_open():
    ids = torch.ones(1, 2, dtype=torch.long)
    own = GenerationConfig(eos_token_id=7, do_sample=True, top_k=4)
    request = make_request(own, None, ids, None, GenerationConfig(max_new_tokens=5, do_sample=False), {})
    assert request.eos_ids == [7] and request.config.pad_token_id == 7
    assert request.config.do_sample is False and request.is_plain_greedy


def test_wrong_inputs_are_named(model_dir):
    backbone = load_backbone(model_dir('llama'))
    with pytest.raises(ValueError, match='either inputs_embeds or input_ids'):
        backbone.generate(max_new_tokens=2)
    with pytest.raises(ValueError, match='does not fit'):
        backbone.generate(input_ids=torch.ones(1, 2).long(), attention_mask=torch.ones(1, 3))


def test_generation_leaves_training_mode_and_gradients_alone(model_dir, prompts):
    for backend in ('megatron', 'hf'):
        backbone = load_backbone(model_dir('llama'), backend, lora={'r': 2, 'lora_dropout': 0.5}).train()
        first, second = (backbone.generate(input_ids=prompts[0], max_new_tokens=4) for _ in range(2))
        assert first.tolist() == second.tolist() and backbone.training
        assert not first.is_inference()
