"""Train tiny SentencePiece-like tokenizers of the two kinds that models carry, for tests of prompts.

    python scripts/testing/make_tiny_tokenizers.py OUTPUT_DIR

`sp_prepend` marks a word start at the beginning of every stretch between special tokens (TinyLlama, Llama 2, Mistral),
`sp_first` only at the beginning of the text (their newer conversions).
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = [
    'Transcribe the following: log in again. your call is very important to us.',
    '[INST] Be brief. [/INST] <<SYS>> And this? user assistant system model hm, well 12.5',
    'Transcribe the following again and again, this call is important',
]
SPECIALS = ['<unk>', '<s>', '</s>']
BYTES = [f'<0x{value:02X}>' for value in range(256)]


def make(kind: str, directory: Path) -> None:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token='<unk>'))
    if kind == 'sp_prepend':
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='first', split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS + BYTES, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    data = json.loads(tokenizer.to_str())
    # Byte tokens are part of the vocabulary only: as added tokens their names would be read in text.
    data['added_tokens'] = [token for token in data['added_tokens'] if token['content'] in SPECIALS]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / 'tokenizer.json').write_text(json.dumps(data, ensure_ascii=False), encoding='utf-8')
    config = {
        'tokenizer_class': 'PreTrainedTokenizerFast',
        'bos_token': '<s>',
        'eos_token': '</s>',
        'unk_token': '<unk>',
    }
    (directory / 'tokenizer_config.json').write_text(json.dumps(config, indent=2), encoding='utf-8')


if __name__ == '__main__':
    for name in ('sp_prepend', 'sp_first'):
        make(name, Path(sys.argv[1]) / name)
