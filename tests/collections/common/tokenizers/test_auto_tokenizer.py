"""The Hugging Face wrapper: NeMo's methods, escaping, padding rule, refusals."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_speech.collections.common.tokenizers import AutoTokenizer, resolve_pad_id
from nemo_speech.collections.common.tokenizers.auto_tokenizer import PlainText
from nemo_speech.core.errors import ConfigError, ModelNotFoundError

TOKENIZERS = Path(__file__).parents[1] / 'prompts' / 'tokenizers'
TAG = '<|audio|>'


def load(name: str = 'bytelevel', **options) -> AutoTokenizer:
    return AutoTokenizer(TOKENIZERS / name, **options)


SHARED = load(additional_special_tokens=[TAG])


def test_nemo_methods_and_ids():
    tokenizer = load()
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2, 3)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.unk) == (1, 2, 3, 0)
    assert tokenizer.vocab_size == 400 == len(tokenizer.vocab)
    ids = tokenizer.text_to_ids('Hello <|im_end|> wörld 漢 <s>')
    # What NeMo's AutoTokenizer gives.
    assert ids == [45, 74, 284, 84, 226, 5, 297, 133, 120, 87, 81, 73, 226, 168, 126, 101, 226, 1]
    assert tokenizer.ids_to_text(ids) == 'Hello  wörld 漢 '
    assert tokenizer.ids_to_text(ids, remove_special_tokens=False) == 'Hello <|im_end|> wörld 漢 <s>'
    assert tokenizer.ids_to_tokens(ids)[:3] == ['H', 'e', 'll']
    assert tokenizer.tokens_to_ids(['a', 'b']) == [tokenizer.token_to_id('a'), tokenizer.token_to_id('b')] == [70, 71]
    assert tokenizer.token_to_id('no such token') == 0
    assert tokenizer.tokens_to_text(tokenizer.text_to_tokens('ab c')) == 'ab c'


def test_add_special_tokens_and_save(tmp_path):
    tokenizer = load()
    assert tokenizer.add_special_tokens({'additional_special_tokens': [TAG, '<s>']}) == 1
    assert tokenizer.add_special_tokens({'additional_special_tokens': [TAG]}) == 0
    assert tokenizer.token_to_id(TAG) == 400 and tokenizer.vocab_size == 401
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer(tmp_path)
    assert again.text_to_ids(f'x{TAG}') == tokenizer.text_to_ids(f'x{TAG}')
    assert again.text_to_ids(TAG, split_special_tokens=True) == tokenizer.text_to_ids(TAG, split_special_tokens=True)


def test_split_special_tokens_keeps_them_text():
    ids = SHARED.text_to_ids(f'a {TAG}<|im_end|>', split_special_tokens=True)
    assert not {400, 5} & set(ids)
    assert SHARED.ids_to_text(ids) == f'a {TAG}<|im_end|>'


PIECES = st.lists(
    st.sampled_from(['a', ' b', 'é', '\n', TAG, '<|im_end|>', '<|im_', 'end|>', '</s>', '<']), max_size=6
)


@given(st.lists(st.tuples(PIECES, st.booleans()), max_size=5))
@settings(max_examples=60, deadline=None)
def test_encode_parts_controls_come_from_plain_str_only(drawn):
    parts = [PlainText(''.join(p)) if plain else ''.join(p) for p, plain in drawn]
    ids, offsets = SHARED.encode_parts(parts)
    text = ''.join(parts)
    assert SHARED.ids_to_text(ids, remove_special_tokens=False) == text
    assert len(ids) == len(offsets)
    # A control token may be spelled by neighbouring str parts, and by nothing in which a PlainText has a share.
    runs = ''.join('\0' if isinstance(part, PlainText) else part for part in parts).split('\0')
    wanted = [i for run in runs for i in SHARED.text_to_ids(run) if i in (2, 5, 400)]
    assert [i for i in ids if i in (2, 5, 400)] == wanted


def test_encode_parts_without_specials_is_one_string():
    parts = ['Transcribe ', PlainText('the fol'), 'lowing', PlainText(': x')]
    assert SHARED.encode_parts(parts)[0] == SHARED.text_to_ids('Transcribe the following: x')


@pytest.mark.parametrize('missing, expected', [((), 3), (('pad_token',), 0)], ids=['pad', 'unk'])
def test_pad_rule(missing, expected):
    tokenizer = load()
    for name in missing:
        setattr(tokenizer.tokenizer, name, None)
    assert resolve_pad_id(tokenizer) == expected


def test_tokenizer_without_pad_and_unk_is_an_error(tmp_path):
    shutil.copy(TOKENIZERS / 'bytelevel' / 'tokenizer.json', tmp_path)
    config = {'tokenizer_class': 'PreTrainedTokenizerFast', 'eos_token': '</s>'}
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
    tokenizer = AutoTokenizer(tmp_path)
    with pytest.raises(ConfigError, match=f'{tmp_path}.*neither a pad nor an unk.*pad_token'):
        resolve_pad_id(tokenizer)
    assert resolve_pad_id(AutoTokenizer(tmp_path, pad_token='</s>')) == 2


@pytest.mark.parametrize('kind', ['nothing', 'empty'])
def test_absent_tokenizer_is_named(tmp_path, kind, monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    where = tmp_path if kind == 'empty' else tmp_path / 'absent'
    with pytest.raises(ModelNotFoundError, match=str(where)):
        AutoTokenizer(where)


def test_remote_code_is_refused(tmp_path):
    with pytest.raises(ConfigError, match='trust_remote_code'):
        load(trust_remote_code=True)
    for name in ('tokenizer.json', 'tokenizer_config.json'):
        shutil.copy(TOKENIZERS / 'bytelevel' / name, tmp_path)
    config = json.loads((tmp_path / 'tokenizer_config.json').read_text())
    config |= {'tokenizer_class': 'Evil', 'auto_map': {'AutoTokenizer': ['evil.Evil', 'evil.Evil']}}
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
    (tmp_path / 'evil.py').write_text(f'open({str(tmp_path / "ran")!r}, "w").close()\nclass Evil: pass\n')
    try:
        AutoTokenizer(tmp_path)
    except ModelNotFoundError:
        pass  # Refusing the files is as good as reading them without their code.
    assert not (tmp_path / 'ran').exists()
