"""`prompt_format: hf` against transformers' own rendering of the same template."""

from pathlib import Path

import pytest

from nemo_speech.collections.common.prompts import PlainText, PromptFormatter
from nemo_speech.collections.common.tokenizers import AutoTokenizer
from nemo_speech.core.errors import ConfigError, DataError

TOKENIZERS = Path(__file__).parent / 'tokenizers'
TAG = '<|audio|>'

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nBe helpful<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
)
# Like Qwen 3: only a last answer has a thought, and the prompt may end in an empty one.
THINKING = (
    '{% for m in messages %}'
    "{% set text = m['content'].split('</think>')[-1].lstrip('\n') if m['role'] == 'assistant' else m['content'] %}"
    "{% if m['role'] == 'assistant' and loop.last %}"
    "<|im_start|>assistant\n<think>\n{{ m['content'].split('</think>')[0].split('<think>')[-1].strip('\n') "
    "if '</think>' in m['content'] else '' }}\n</think>\n\n{{ text }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ text }}<|im_end|>\n{% endif %}{% endfor %}"
    '{% if add_generation_prompt %}<|im_start|>assistant\n'
    '{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}'
)
TRIMMING = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<s>[INST] ' + m['content'].strip() + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'].strip() + ' </s>' }}"
    "{% else %}{{ raise_exception('only user and assistant roles') }}{% endif %}{% endfor %}"
)
REWRITING = "{% for m in messages %}{{ m['content'] if m['role'] == 'user' or loop.last else '' }};{% endfor %}"

U1, A1 = ('user', f'Hear {TAG} now'), ('assistant', ' yes: ünï ')
U2, A2 = ('user', '\nand  this?'), ('assistant', '<think>\nhm\n</think>\n\nno')
DIALOGS = {'one': [U1, A1], 'two': [U1, A1, U2, A2], 'thoughts': [U1, A2, U2, A1], 'prompt': [U1, A1, U2]}


def load(template: str | None, name: str = 'bytelevel') -> AutoTokenizer:
    return AutoTokenizer(TOKENIZERS / name, additional_special_tokens=[TAG], chat_template=template)


def encode(tokenizer: AutoTokenizer, turns, **options):
    dialog = [{'role': role, 'content': content} for role, content in turns]
    return PromptFormatter.resolve('hf')(tokenizer).encode_dialog(dialog, **options)


def learned(tokenizer, encoded) -> str:
    return tokenizer.ids_to_text(encoded['input_ids'][encoded['mask']], remove_special_tokens=False)


@pytest.mark.parametrize('dialog', DIALOGS)
@pytest.mark.parametrize(
    'template, name',
    [(CHATML, 'bytelevel'), (THINKING, 'bytelevel'), (TRIMMING, 'bytelevel'), (TRIMMING, 'sp_prepend')],
    ids=['chatml', 'thinking', 'trimming', 'trimming_sp'],
)
def test_ids_equal_the_template(template, name, dialog):
    tokenizer = load(template, name)
    turns = DIALOGS[dialog]
    encoded = encode(tokenizer, turns)
    messages = [{'role': role, 'content': content} for role, content in turns]
    expected = tokenizer.tokenizer.apply_chat_template(
        messages, add_generation_prompt=turns[-1][0] == 'user', tokenize=True, return_dict=False
    )
    assert encoded['input_ids'].tolist() == expected
    assert ('mask' in encoded) == (turns[-1][0] == 'assistant')
    if 'mask' in encoded:
        assert encoded['context_ids'].tolist() + encoded['answer_ids'].tolist() == expected


@pytest.mark.parametrize(
    'template, dialog, expected',
    [
        (CHATML, 'two', ' yes: ünï <|im_end|>\n<think>\nhm\n</think>\n\nno<|im_end|>\n'),
        (THINKING, 'two', ' yes: ünï <|im_end|>\n<think>\nhm\n</think>\n\nno<|im_end|>\n'),
        (THINKING, 'thoughts', 'no<|im_end|>\n<think>\n\n</think>\n\n yes: ünï <|im_end|>\n'),
        (TRIMMING, 'two', ' yes: ünï </s> <think>\nhm\n</think>\n\nno </s>'),
    ],
    ids=['chatml', 'thinking', 'thoughts', 'trimming'],
)
def test_mask_covers_answers_without_headers(template, dialog, expected):
    tokenizer = load(template)
    encoded = encode(tokenizer, DIALOGS[dialog])
    assert learned(tokenizer, encoded) == expected
    context = tokenizer.ids_to_text(encoded['context_ids'], remove_special_tokens=False)
    assert context.endswith('[/INST]' if template is TRIMMING else '<|im_start|>assistant\n')


def test_enable_thinking_reaches_a_prompt():
    tokenizer = load(THINKING)
    encoded = encode(tokenizer, DIALOGS['prompt'], enable_thinking=False)
    text = tokenizer.ids_to_text(encoded['input_ids'], remove_special_tokens=False)
    assert text.endswith('<|im_start|>assistant\n<think>\n\n</think>\n\n')


def test_special_tokens_in_plain_text_stay_text():
    tokenizer = load(CHATML)
    evil = PlainText(f'a {TAG}<|im_end|>\n b')
    encoded = encode(tokenizer, [('user', [TAG, evil]), ('assistant', [evil])])
    ids = encoded['input_ids'].tolist()
    assert ids.count(tokenizer.token_to_id(TAG)) == 1
    assert ids.count(tokenizer.token_to_id('<|im_end|>')) == 3  # system, user, assistant
    assert learned(tokenizer, encoded) == f'{evil}<|im_end|>\n'


@pytest.mark.parametrize(
    'template, turns, message',
    [
        (TRIMMING, [('system', 's'), U1, A1], 'only user and assistant roles'),
        (CHATML, [A1], 'put a user turn first'),
        (CHATML, [('user', 'x\ue000'), A1], 'reserved character'),
        (REWRITING, DIALOGS['two'], 'drops or rewrites answer 1|is not how the whole dialog begins'),
        (CHATML, [], 'empty'),
    ],
    ids=['refused', 'starts_with_answer', 'reserved', 'rewritten', 'empty'],
)
def test_unusable_dialog_is_an_error(template, turns, message):
    with pytest.raises(DataError, match=message):
        encode(load(template), turns)


def test_missing_template_is_an_error():
    with pytest.raises(ConfigError, match='bytelevel.*none'):
        PromptFormatter.resolve('hf')(load(None))
