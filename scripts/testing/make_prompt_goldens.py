"""Write what NeMo's prompt formatters make of a set of dialogs, as JSON for our tests to compare with.

Run it in an environment that has nemo_toolkit, named by NEMO_PYTHON:

    $NEMO_PYTHON scripts/testing/make_prompt_goldens.py TOKENIZER_DIR golden_NAME.json

A format that draws random numbers (qwen3) is run under many seeds; all its outcomes are written.
"""

import argparse
import json
import random

FORMATS = 'llama2 llama3 qwen qwen3 gemma mistral plain nemotron-nano-v3 phi2_qa phi2_chat phi2_code'.split()
THINKING = ('qwen3', 'nemotron-nano-v3')
SEEDS = 24


def turn(role: str, content: str) -> dict:
    return {'role': role, 'content': content}


U1, A1 = turn('user', 'Transcribe the following: <|audio|>'), turn('assistant', 'log in again.')
U2, A2 = turn('user', ' And  this?\n<|audio|> '), turn('assistant', ' Ünï: 漢字, 12.5 ')
THOUGHT = turn('assistant', '<think>\nhm,\n\nwell\n</think>\n\nlog in again.')
SYSTEM = turn('system', 'Be brief.')
DIALOGS = {
    'one_turn': [U1, A1],
    'multi_turn': [U1, A1, U2, A2],
    'spaces_multi_turn': [U1, A2, U2, A2],
    'inference': [U1],
    'inference_multi_turn': [U1, A1, U2],
    'empty_answer': [U1, turn('assistant', '')],
    'system': [SYSTEM, U1, A1],
    'system_inference': [SYSTEM, U1],
    'thought': [U1, THOUGHT],
    'thought_multi_turn': [U1, THOUGHT, U2, THOUGHT],
    'thought_earlier': [U1, THOUGHT, U2, A2],
    'thought_spaces': [U1, turn('assistant', '<think>\nhm\n</think>\n\n  log in. '), U2, A1],
    'thought_spaces_last': [U1, turn('assistant', ' <think>\nhm\n</think>\n\n  log in. ')],
    'thought_inference': [U1, THOUGHT, U2],
    'system_and_user': [
        {'role': 'system_and_user', 'slots': {'system': SYSTEM['content'], 'message': U1['content']}},
        A1,
    ],
}


def encode(formatter, dialog: list[dict], options: dict) -> list[dict]:
    """All outcomes, without repeats; none if NeMo refuses the dialog."""
    outcomes = []
    for seed in range(SEEDS):
        random.seed(seed)
        try:
            encoded = formatter.encode_dialog(json.loads(json.dumps(dialog)), **options)
        except AssertionError:
            return []
        if len(encoded['context_ids']) == 0:
            return []  # An answer of no tokens: NeMo slices by -0, and calls the whole dialog the answer.
        ids, mask = encoded['input_ids'].tolist(), encoded.get('mask')
        outcome = {'input_ids': ids, 'num_context': len(encoded['context_ids'])}
        if mask is not None:
            outcome['mask'] = ''.join(str(int(flag)) for flag in mask)
            assert ids == encoded['context_ids'].tolist() + encoded['answer_ids'].tolist()
        if outcome not in outcomes:
            outcomes.append(outcome)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('tokenizer')
    parser.add_argument('output')
    args = parser.parse_args()

    from nemo.collections.common.prompts import PromptFormatter
    from nemo.collections.common.tokenizers import AutoTokenizer

    tokenizer = AutoTokenizer(args.tokenizer, use_fast=True)
    tokenizer.add_special_tokens({'additional_special_tokens': ['<|audio|>']})
    cases = []
    for name in FORMATS:
        formatter = PromptFormatter.resolve(name)(tokenizer)
        for dialog_name, dialog in DIALOGS.items():
            if 'thought' in dialog_name and name not in THINKING:
                continue
            for thinking in (None, True, False) if name in THINKING and 'inference' in dialog_name else (None,):
                options = {} if thinking is None else {'enable_thinking': thinking}
                outcomes = encode(formatter, dialog, options)
                if outcomes:
                    case = {'format': name, 'dialog': dialog_name, 'enable_thinking': thinking, 'outcomes': outcomes}
                    cases.append(case)
    with open(args.output, 'w', encoding='utf-8') as file:
        lines = ',\n'.join(json.dumps(case, separators=(',', ':')) for case in cases)
        dialogs = json.dumps(DIALOGS, ensure_ascii=False)
        file.write(f'{{"audio_tag": "<|audio|>", "dialogs": {dialogs},\n"cases": [\n{lines}\n]}}\n')


if __name__ == '__main__':
    main()
