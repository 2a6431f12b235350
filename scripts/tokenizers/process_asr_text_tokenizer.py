"""Train a SentencePiece tokenizer on the texts of manifests, for `model.tokenizer.dir` of ASR training.

    python scripts/tokenizers/process_asr_text_tokenizer.py \
        --manifest=train.json --data_root=tokenizers --vocab_size=1024

The flags and the files are those of NeMo's script: `<data_root>/tokenizer_spe_<type>_v<size>/{tokenizer.model,
tokenizer.vocab, vocab.txt}`.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument('--manifest', help='NeMo manifests, separated by commas')
    source.add_argument('--data_file', help='text files, separated by commas; a text a line')
    parser.add_argument('--data_root', type=Path, required=True, help='folder for the tokenizer')
    parser.add_argument('--vocab_size', type=int, default=1024, help='tokens (default: %(default)s)')
    parser.add_argument('--tokenizer', choices=['spe'], default='spe', help='SentencePiece')
    parser.add_argument('--spe_type', choices=['bpe', 'unigram', 'char'], default='unigram')
    parser.add_argument('--spe_character_coverage', type=float, default=1.0, help='share of characters with a token')
    parser.add_argument('--spe_max_sentencepiece_length', type=int, help='longest token in characters')
    parser.add_argument('--spe_sample_size', type=int, help='train on so many texts, drawn at random')
    parser.add_argument('--spe_split_by_unicode_script', action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument('--spe_user_defined_symbols', nargs='+', default=[], help='texts that are tokens as they are')
    parser.add_argument('--spe_byte_fallback', action='store_true', help='unknown characters become bytes')
    parser.add_argument(
        '--no_lower_case',
        dest='lower_case',
        action='store_false',
        help='keep upper case; else the tokenizer folds case',
    )
    return parser.parse_args(argv)


def read_texts(options: argparse.Namespace) -> Iterator[str]:
    """Texts of all sources.

    Raises:
        SystemExit: A file is missing, or a line has no text; named.
    """
    is_manifest = options.manifest is not None
    for name in (options.manifest or options.data_file).split(','):
        path = Path(name)
        if not path.is_file():
            raise SystemExit(f'{path}: no such file; expected a {"manifest" if is_manifest else "text file"}.')
        with path.open(encoding='utf-8') as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _text_of(line, f'{path}:{number}') if is_manifest else line.strip()


def _text_of(line: str, where: str) -> str:
    try:
        text = json.loads(line)['text']
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f'{where}: expected a JSON object with "text".') from error
    if not isinstance(text, str):
        raise SystemExit(f'{where}: text is {text!r}; expected a string.')
    return text


def train_tokenizer(texts: Iterator[str], options: argparse.Namespace) -> Path:
    """Train on `texts`; returns the folder of the tokenizer.

    Raises:
        SystemExit: There is no text, or SentencePiece cannot make so many tokens of it.
    """
    import sentencepiece

    folder = options.data_root / f'tokenizer_spe_{options.spe_type}_v{options.vocab_size}'
    texts = [text for text in texts if text]
    if not texts:
        raise SystemExit('There is no text to train on: all are empty.')
    longest = {'max_sentencepiece_length': options.spe_max_sentencepiece_length}
    sample = {'input_sentence_size': options.spe_sample_size, 'shuffle_input_sentence': True}
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=options.vocab_size,
            model_type=options.spe_type,
            character_coverage=options.spe_character_coverage,
            split_by_unicode_script=options.spe_split_by_unicode_script,
            user_defined_symbols=options.spe_user_defined_symbols,
            byte_fallback=options.spe_byte_fallback,
            bos_id=-1,
            eos_id=-1,
            hard_vocab_limit=False,
            normalization_rule_name='nmt_nfkc_cf' if options.lower_case else 'nmt_nfkc',
            minloglevel=2,
            **(longest if options.spe_max_sentencepiece_length else {}),
            **(sample if options.spe_sample_size else {}),
        )
    except RuntimeError as error:
        raise SystemExit(f'--vocab_size={options.vocab_size}: {str(error).strip()}') from error
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'tokenizer.model').write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    vocab = ''.join(f'{piece}\t{score:g}\n' for piece, score in pieces)
    (folder / 'tokenizer.vocab').write_text(vocab, encoding='utf-8')
    # As NeMo writes it: word pieces go on with `##`, and the unknown token is left out.
    shown = [(p[1:] or p) if p.startswith('▁') else f'##{p}' for p, _ in pieces if p != '<unk>']
    (folder / 'vocab.txt').write_text(''.join(f'{piece}\n' for piece in shown), encoding='utf-8')
    return folder


def main() -> int:
    options = parse_arguments()
    folder = train_tokenizer(read_texts(options), options)
    size = sum(1 for _ in (folder / 'tokenizer.vocab').open(encoding='utf-8'))
    if size < options.vocab_size:
        print(f'The texts give only {size} tokens, of {options.vocab_size} that were asked for.')
    print(f'Tokenizer: {folder}')
    print(f'To train with it: python examples/asr/speech_to_text_ctc.py model.tokenizer.dir={folder} ...')
    return 0


if __name__ == '__main__':
    sys.exit(main())
