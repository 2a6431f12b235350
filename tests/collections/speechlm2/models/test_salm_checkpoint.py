"""SALM directories are read strictly, in every layout that NeMo writes, and faults in them are named."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_speech.collections.speechlm2 import SALM
from nemo_speech.core.errors import CheckpointError, ConfigError
from tests.tiny import make_tiny_llm, salm_config

Q_PROJ = 'llm.base_model.model.model.layers.0.self_attn.q_proj'
TOKENIZER_FILES = ('tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'chat_template.jinja')


def make_directory(directory: Path, arch: str, lora: bool) -> Path:
    """A SALM saved in NeMo's layout, its LLM's directory `llm` beside it; LoRA weights are not zero."""
    llm = make_tiny_llm(directory / 'llm', arch)
    torch.manual_seed(0)
    model = SALM(salm_config(llm) if lora else salm_config(llm, lora=None))
    if lora:
        weights = model.llm.adapter_state_dict()
        model.llm.load_adapter_state_dict({k: 0.1 * torch.randn_like(v) for k, v in weights.items()})
    model.save_pretrained(directory / 'salm', nemo_compatible=True)
    return directory / 'salm'


@pytest.fixture(scope='module')
def originals(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp('salm')
    kinds = {
        'plain': ('llama', False),
        'lora': ('llama', True),
        'tied': ('qwen3', False),
        'tied_lora': ('qwen3', True),
    }
    return {name: make_directory(root / name, *kind) for name, kind in kinds.items()}


@pytest.fixture
def copy(originals, tmp_path):
    """Gives a copy of one of the directories, to be spoilt."""
    return lambda kind: Path(shutil.copytree(originals[kind], tmp_path / kind))


def change_config(directory: Path, **changes) -> None:
    file = directory / 'config.json'
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_tensors(directory: Path, change) -> None:
    file = directory / 'model.safetensors'
    save_file(change(load_file(file)), file, {'format': 'pt'})


def same_state(a: SALM, b: SALM) -> bool:
    ours, theirs = a.hf_state_dict(), b.hf_state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('kind', ['plain', 'lora', 'tied', 'tied_lora'])
def test_a_directory_saved_again_holds_the_same_tensors(originals, kind, backend, tmp_path):
    SALM.from_pretrained(originals[kind], backend=backend).save_pretrained(tmp_path, nemo_compatible=True)
    before, after = load_file(originals[kind] / 'model.safetensors'), load_file(tmp_path / 'model.safetensors')
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_lora_is_saved_under_pefts_names(originals):
    names = load_file(originals['lora'] / 'model.safetensors').keys()
    leaves = ('base_layer.weight', 'lora_A.default.weight', 'lora_B.default.weight')
    assert {f'{Q_PROJ}.{leaf}' for leaf in leaves} <= names
    assert 'llm.base_model.model.lm_head.weight' in names
    assert 'embed_tokens.weight' in names
    assert not any(n.startswith('llm.') and not n.startswith('llm.base_model.model.') for n in names)


def test_nemo_compatible_config_holds_only_what_nemo_knows(originals):
    text = (originals['lora'] / 'config.json').read_text()
    assert 'nemo_speech.' not in text
    assert not {'backend', 'ctc', 'validation', 'transcribe_prompt'} & json.loads(text).keys()


@pytest.mark.parametrize(
    'kind, name',
    [
        ('plain', 'perception.proj.weight'),
        ('plain', 'embed_tokens.weight'),
        ('plain', 'llm.lm_head.weight'),
        ('plain', 'llm.model.layers.1.self_attn.k_proj.weight'),
        ('lora', f'{Q_PROJ}.lora_B.default.weight'),
        ('tied', 'embed_tokens.weight'),
    ],
)
def test_missing_tensor_is_named(copy, kind, name):
    directory = copy(kind)
    change_tensors(directory, lambda tensors: {k: v for k, v in tensors.items() if k != name})
    with pytest.raises(CheckpointError, match=rf'missing tensors: {name.replace(".default", "")}; unexpected.*none'):
        SALM.from_pretrained(directory)


@pytest.mark.parametrize(
    'name',
    ['perception.proj.scale', 'llm.model.layers.7.mlp.up_proj.weight', 'vocoder.weight', f'{Q_PROJ}.lora_A.weight'],
)
def test_unexpected_tensor_is_named(copy, name):
    directory = copy('plain')
    change_tensors(directory, lambda tensors: {**tensors, name: torch.ones(2)})
    with pytest.raises(CheckpointError, match=rf'unexpected tensors: {name}'):
        SALM.from_pretrained(directory)


@pytest.mark.parametrize(
    'name', ['perception.proj.weight', 'llm.model.layers.0.self_attn.q_proj.weight', 'embed_tokens.weight']
)
def test_misshapen_tensor_is_named(copy, name):
    directory = copy('plain')
    change_tensors(directory, lambda tensors: {**tensors, name: torch.zeros(3, 5)})
    with pytest.raises(CheckpointError, match=name.removeprefix('perception.').removeprefix('llm.')):
        SALM.from_pretrained(directory)


def test_not_strict_keeps_what_fits(copy, originals):
    directory = copy('plain')
    change_tensors(
        directory, lambda t: {k: v for k, v in t.items() if k != 'perception.proj.bias'} | {'x': torch.ones(2)}
    )
    loose, full = SALM.from_pretrained(directory, strict=False), SALM.from_pretrained(originals['plain'])
    assert torch.equal(loose.perception.proj.weight, full.perception.proj.weight)
    assert not torch.equal(loose.perception.proj.bias, full.perception.proj.bias)


@pytest.mark.parametrize('kind, head', [('tied', 'llm.lm_head'), ('tied_lora', 'llm.base_model.model.lm_head')])
@pytest.mark.parametrize('both', [False, True], ids=['head_only', 'head_and_table'])
def test_tied_table_may_lie_under_the_heads_name(copy, originals, kind, head, both):
    def rename(tensors):
        table = tensors['embed_tokens.weight']
        kept = tensors if both else {k: v for k, v in tensors.items() if k != 'embed_tokens.weight'}
        return {**kept, f'{head}.weight': table.clone()}

    directory = copy(kind)
    change_tensors(directory, rename)
    assert same_state(SALM.from_pretrained(directory), SALM.from_pretrained(originals[kind]))


def test_tied_tables_that_differ_are_refused(copy):
    directory = copy('tied')
    change_tensors(directory, lambda t: {**t, 'llm.lm_head.weight': t['embed_tokens.weight'] + 1})
    with pytest.raises(CheckpointError, match='ties its embeddings'):
        SALM.from_pretrained(directory)


def test_canary_qwen_shaped_directory_loads_from_a_local_llm(copy, originals, monkeypatch):
    """As the hub's canary-qwen-2.5b: bfloat16, peft layout, tied, no tokenizer and no backbone config in it."""
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    directory = copy('tied_lora')
    shutil.rmtree(directory / 'llm_backbone')
    for name in TOKENIZER_FILES:
        (directory / name).unlink(missing_ok=True)
    change_config(directory, pretrained_llm=str(originals['tied_lora'].parent / 'llm'), tokenizer_path=None)
    change_tensors(
        directory, lambda tensors: {k: v.bfloat16() if v.is_floating_point() else v for k, v in tensors.items()}
    )
    model = SALM.from_pretrained(directory)
    assert sorted(p.name for p in directory.iterdir()) == ['config.json', 'model.safetensors']
    assert model.audio_locator_tag == '<|audioplaceholder|>'
    dialog = [{'role': 'user', 'content': 'Transcribe the following: <|audioplaceholder|>'}]
    ids = model.generate([dialog], torch.randn(1, 16000), torch.tensor([16000]), max_new_tokens=4)
    assert ids.shape == (1, 4)
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_saved_directory_needs_nothing_beside_it(copy, originals, tmp_path):
    """It was made from an LLM and a tokenizer elsewhere; both lie in it."""
    directory = copy('lora')
    change_config(directory, pretrained_llm='nowhere/to-be-found')
    assert same_state(SALM.from_pretrained(directory), SALM.from_pretrained(originals['lora']))


def test_paths_are_looked_for_beside_the_directory(originals, tmp_path):
    shutil.copytree(originals['plain'].parent, tmp_path / 'moved')
    directory = tmp_path / 'moved' / 'salm'
    shutil.rmtree(directory / 'llm_backbone')
    change_config(directory, pretrained_llm='../llm')
    assert same_state(SALM.from_pretrained(directory), SALM.from_pretrained(originals['plain']))


def test_a_downloaded_config_cannot_have_code_run(copy):
    directory = copy('plain')
    change_config(directory, trust_remote_code=True)
    assert SALM.from_pretrained(directory).cfg.trust_remote_code is False


def test_keys_that_tell_nemo_how_to_run_are_passed_over(copy, originals):
    directory = copy('plain')
    change_config(directory, use_nemo_automodel=True, packed_sequences=True, pretrained_s2s_model=None)
    assert same_state(SALM.from_pretrained(directory), SALM.from_pretrained(originals['plain']))


def test_unknown_key_gets_a_hint(copy):
    directory = copy('plain')
    change_config(directory, promt_format='llama2')
    with pytest.raises(ConfigError, match=r'promt_format.*prompt_format') as error:
        SALM.from_pretrained(directory)
    assert str(directory / 'config.json') in str(error.value)


@pytest.mark.parametrize('name', ['model.safetensors', 'config.json'])
@pytest.mark.parametrize('content', [b'', b'{"a": ', None], ids=['empty', 'cut', 'absent'])
def test_damaged_file_is_named(copy, name, content):
    file = copy('plain') / name
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        SALM.from_pretrained(file.parent)


def test_truncated_weights_are_named(copy):
    file = copy('plain') / 'model.safetensors'
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match='model.safetensors is damaged'):
        SALM.from_pretrained(file.parent)


def test_config_that_is_no_object_is_named(copy):
    directory = copy('plain')
    (directory / 'config.json').write_text('[]')
    with pytest.raises(CheckpointError, match=r'config.json.*list'):
        SALM.from_pretrained(directory)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('dtype', ['bfloat16', torch.bfloat16], ids=str)
def test_torch_dtype_is_that_of_the_weights(originals, backend, dtype):
    model = SALM.from_pretrained(originals['lora'], backend=backend, torch_dtype=dtype)
    assert {p.dtype for n, p in model.named_parameters() if 'lora_' not in n} == {torch.bfloat16}
    weight = load_file(originals['lora'] / 'model.safetensors')['perception.proj.weight']
    assert torch.equal(model.perception.proj.weight, weight.bfloat16())


def test_lora_trains_under_a_freeze_list_that_names_the_whole_llm(tiny_llm):
    model = SALM(salm_config(tiny_llm, prevent_freeze_params=[]))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad and 'llm.' in name]
    assert trained and all('.lora_' in name for name in trained)


@pytest.mark.parametrize(
    'content, message',
    [
        ({'weights': 1}, "x.ckpt: no training checkpoint: expected a 'state_dict'"),
        ({'state_dict': {}}, r'x.ckpt does not fit SALM: \d+ missing: '),
        ({'state_dict': {}, 'code': print}, 'x.ckpt holds objects other than tensors'),
    ],
    ids=['other', 'empty', 'code'],
)
def test_checkpoint_to_start_from_that_is_none_is_named(tiny_llm, tmp_path, content, message):
    torch.save(content, tmp_path / 'x.ckpt')
    with pytest.raises(CheckpointError, match=message):
        SALM(salm_config(tiny_llm, init_from_checkpoint=str(tmp_path / 'x.ckpt')))


def test_checkpoint_cut_short_is_named(tiny_llm, tmp_path):
    (tmp_path / 'x.ckpt').write_bytes(b'PK' * 40)
    with pytest.raises(CheckpointError, match='x.ckpt'):
        SALM(salm_config(tiny_llm, init_from_checkpoint=str(tmp_path / 'x.ckpt')))


def test_audio_tag_may_not_be_empty(tiny_llm):
    with pytest.raises(ConfigError, match='model: audio_locator_tag is empty'):
        SALM(salm_config(tiny_llm, audio_locator_tag=' '))
