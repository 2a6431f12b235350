"""Make the tokenizer of the special tokens of Canary prompts, for `model.tokenizer.langs.spl_tokens.dir`.

    python scripts/tokenizers/build_canary_special_tokenizer.py tokenizers/spl_tokens --langs en de es fr

Tokens are those of the canary2 prompt format, and time tokens with `--num_times`.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

# The order of NeMo's, so that ids agree.
_FIRST = ['<|nospeech|>', '<pad>', '<|endoftext|>', '<|startoftranscript|>', '<|pnc|>', '<|nopnc|>']
_SLOTS = [
    *('<|startofcontext|>', '<|itn|>', '<|noitn|>', '<|timestamp|>', '<|notimestamp|>', '<|diarize|>'),
    *('<|nodiarize|>', '<|transcribe|>', '<|translate|>', '<|spkchange|>', '<|audioseparator|>'),
    *(f'<|emo:{name}|>' for name in ('undefined', 'neutral', 'happy', 'sad', 'angry')),
]


def special_tokens(langs: Sequence[str], num_times: int) -> list[str]:
    """All tokens, in the order of their ids."""
    return [*_FIRST, *_SLOTS, *(f'<|{lang}|>' for lang in langs), *(f'<|{i}|>' for i in range(num_times))]


def main(argv: Sequence[str] | None = None) -> int:
    import sentencepiece

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('directory', type=Path, help='where the tokenizer goes')
    parser.add_argument('--langs', nargs='+', default=['en', 'de', 'es', 'fr'], help='(default: en de es fr)')
    parser.add_argument('--num_times', type=int, default=0, help='time tokens <|0|>, <|1|>, ... (default: none)')
    options = parser.parse_args(argv)
    tokens = special_tokens(options.langs, options.num_times)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tokens),
        model_writer=model,
        vocab_size=len(tokens) + 2,  # and the unknown token, and the mark of a word's start
        model_type='unigram',
        user_defined_symbols=tokens,
        bos_id=-1,
        eos_id=-1,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    options.directory.mkdir(parents=True, exist_ok=True)
    (options.directory / 'tokenizer.model').write_bytes(model.getvalue())
    print(f'{len(tokens)} special tokens: {options.directory}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
