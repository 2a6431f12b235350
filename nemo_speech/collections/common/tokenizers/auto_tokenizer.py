"""Hugging Face tokenizers behind NeMo's tokenizer API.

Beyond NeMo's: text can be encoded so that special tokens written in it stay text (`split_special_tokens`,
:meth:`AutoTokenizer.encode_parts`), and loading never runs code that comes with the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nemo_speech.core.errors import ConfigError, ModelNotFoundError

__all__ = ['AutoTokenizer', 'PlainText', 'resolve_pad_id']


class PlainText(str):
    """A string whose special tokens are plain text: `<|im_end|>` in it never ends a turn."""


class AutoTokenizer:
    """NeMo's wrapper of a Hugging Face tokenizer.

    Attributes:
        tokenizer: The Hugging Face tokenizer (`PreTrainedTokenizerBase`).
        name_or_path: Where it came from; names it in errors.
    """

    def __init__(
        self,
        pretrained_model_name: str | Path,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        pad_token: str | None = None,
        unk_token: str | None = None,
        additional_special_tokens: Sequence[str] = (),
        chat_template: str | None = None,
        use_fast: bool = True,
        trust_remote_code: bool = False,
    ) -> None:
        """Load a tokenizer from a directory, a `.gguf` file, the hub's cache or the hub.

        Args:
            pretrained_model_name: Directory, `.gguf` file, or hub id.
            bos_token, eos_token, pad_token, unk_token: Replace the tokenizer's own; added to it if they are new.
            additional_special_tokens: More special tokens, such as the audio locator tag.
            chat_template: Jinja text that replaces the tokenizer's chat template.
            use_fast: The Rust implementation, where there is one.
            trust_remote_code: Must stay False; it is here because NeMo's configs name it.

        Raises:
            ModelNotFoundError: No tokenizer is there.
            ConfigError: `trust_remote_code` is set.
        """
        if trust_remote_code:
            raise ConfigError(
                f"tokenizer '{pretrained_model_name}': trust_remote_code=True is not supported, because it runs code "
                "that comes with the files. Convert the tokenizer to tokenizer.json and drop the option."
            )
        self.name_or_path = str(pretrained_model_name)
        self.tokenizer = _load(self.name_or_path, use_fast)
        self._special_pattern: tuple[int, re.Pattern[str]] | None = None
        if chat_template is not None:
            self.tokenizer.chat_template = chat_template
        named = {'bos_token': bos_token, 'eos_token': eos_token, 'pad_token': pad_token, 'unk_token': unk_token}
        self.add_special_tokens({key: token for key, token in named.items() if token is not None})
        if additional_special_tokens:
            self.add_special_tokens({'additional_special_tokens': list(additional_special_tokens)})

    def add_special_tokens(self, special_tokens_dict: dict[str, Any]) -> int:
        """Add special tokens and say how many were new to the vocabulary.

        Args:
            special_tokens_dict: `{'pad_token': '<pad>', 'additional_special_tokens': ['<|audio|>', ...]}`. Listed
                tokens join those already there.
        """
        if not special_tokens_dict:
            return 0
        named = {key: value for key, value in special_tokens_dict.items() if key != 'additional_special_tokens'}
        added = self.tokenizer.add_special_tokens(named) if named else 0
        extra = list(special_tokens_dict.get('additional_special_tokens', ()))
        return added + (self.tokenizer.add_tokens(extra, special_tokens=True) if extra else 0)

    def text_to_ids(self, text: str, *, split_special_tokens: bool = False) -> list[int]:
        """Ids of `text`, nothing added around it.

        Args:
            text: Any text.
            split_special_tokens: True: special tokens written in `text` are encoded as the characters they are.
        """
        return self._encode(text, split_special_tokens)[0]

    def encode_parts(self, parts: Sequence[str]) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode `''.join(parts)`, where only plain `str` parts may contribute special tokens.

        The parts are tokenized as the one string they form, so merges across parts are what the model knows. Only
        where a special token stands in a :class:`PlainText` (or arises at its edge) is the string cut, and that
        stretch encoded as the characters it is; a SentencePiece-like tokenizer may mark a word start at such a cut.

        Returns:
            Ids, and for each its `(start, end)` characters in the joined string. A slow tokenizer (`use_fast=False`)
            gives no offsets: the list is empty.
        """
        text = ''.join(parts)
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        position = 0
        for start, end in [*self.plain_specials(parts), (len(text), len(text))]:
            for begin, stop, split in ((position, start, False), (start, end, True)):
                if begin == stop:
                    continue
                piece_ids, piece_offsets = self._encode(text[begin:stop], split)
                ids += piece_ids
                offsets += [(a + begin, b + begin) for a, b in piece_offsets]
            position = end
        return ids, offsets

    def text_to_tokens(self, text: str) -> list[str]:
        """Tokens of `text`, as the vocabulary spells them."""
        return self.tokenizer.tokenize(text)

    def ids_to_text(self, ids: Sequence[int], remove_special_tokens: bool = True) -> str:
        """Text of `ids` (ints, or a 1-D tensor); special tokens are left out by choice."""
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=remove_special_tokens)

    def tokens_to_text(self, tokens: Sequence[str]) -> str:
        return self.tokenizer.convert_tokens_to_string(list(tokens))

    def tokens_to_ids(self, tokens: str | Sequence[str]) -> list[int]:
        return self.tokenizer.convert_tokens_to_ids([tokens] if isinstance(tokens, str) else list(tokens))

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return self.tokenizer.convert_ids_to_tokens([int(i) for i in ids])

    def token_to_id(self, token: str) -> int | None:
        """Id of one token; of an unknown one `unk_id`, or None where the tokenizer has no unknown token."""
        return self.tokenizer.convert_tokens_to_ids(token)

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        """The Hugging Face tokenizer's own method."""
        return self.tokenizer.apply_chat_template(*args, **kwargs)

    def save_pretrained(self, save_directory: str | Path) -> tuple[str, ...]:
        """Write the tokenizer, with everything added to it, as a Hugging Face directory."""
        return self.tokenizer.save_pretrained(str(save_directory))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return len(self.tokenizer)

    @property
    def vocab(self) -> list[str]:
        """All tokens, in id order."""
        return self.ids_to_tokens(range(self.vocab_size))

    @property
    def bos_id(self) -> int | None:
        return self.tokenizer.bos_token_id

    @property
    def eos_id(self) -> int | None:
        return self.tokenizer.eos_token_id

    @property
    def pad_id(self) -> int | None:
        return self.tokenizer.pad_token_id

    @property
    def unk_id(self) -> int | None:
        return self.tokenizer.unk_token_id

    # NeMo code also reads the ids under these names.
    bos, eos, pad, unk = bos_id, eos_id, pad_id, unk_id

    @property
    def bos_token(self) -> str | None:
        return self.tokenizer.bos_token

    @property
    def eos_token(self) -> str | None:
        return self.tokenizer.eos_token

    @property
    def pad_token(self) -> str | None:
        return self.tokenizer.pad_token

    @property
    def unk_token(self) -> str | None:
        return self.tokenizer.unk_token

    def _encode(self, text: str, split_special_tokens: bool) -> tuple[list[int], list[tuple[int, int]]]:
        encoded = self.tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=split_special_tokens,
            return_attention_mask=False,
            return_offsets_mapping=self.tokenizer.is_fast,
        )
        return encoded['input_ids'], encoded['offset_mapping'] if self.tokenizer.is_fast else []

    def plain_specials(self, parts: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Stretches of `''.join(parts)` that spell a special token but do not lie within plain `str` parts."""
        if not any(isinstance(part, PlainText) for part in parts):
            return
        control: list[tuple[int, int]] = []
        position = 0
        for part in parts:
            end = position + len(part)
            if not isinstance(part, PlainText):
                # Neighbours are one stretch: a token may be spelled by two of them.
                start = control.pop()[0] if control and control[-1][1] == position else position
                control.append((start, end))
            position = end
        for match in self._specials().finditer(''.join(parts)):
            start, end = match.span()
            if not any(a <= start and end <= b for a, b in control):
                yield start, end

    def _specials(self) -> re.Pattern[str]:
        """Matches any special token; rebuilt when the vocabulary has grown."""
        size = len(self.tokenizer)
        if self._special_pattern is None or self._special_pattern[0] != size:
            added = self.tokenizer.added_tokens_decoder.values()
            tokens = {token.content for token in added if token.special} | set(self.tokenizer.all_special_tokens)
            longest_first = sorted(tokens, key=len, reverse=True)
            pattern = re.compile('|'.join(map(re.escape, longest_first)) if longest_first else r'(?!)')
            self._special_pattern = (size, pattern)
        return self._special_pattern[1]


def resolve_pad_id(tokenizer: AutoTokenizer) -> int:
    """Id to fill a batch with: the pad token, else the unknown token (NeMo's order, without its last resort, 0).

    The id may well be one that text uses (pad == eos is common), so padding is told by masks and never by this id.

    Raises:
        ConfigError: The tokenizer has neither.
    """
    for token_id in (tokenizer.pad_id, tokenizer.unk_id):
        if token_id is not None:
            return token_id
    raise ConfigError(
        f"tokenizer '{tokenizer.name_or_path}' has neither a pad nor an unk token, so there is nothing to pad a batch "
        f"with. Give it one: tokenizer.add_special_tokens({{'pad_token': ...}}), e.g. its eos token "
        f"({tokenizer.eos_token!r}); its labels are kept, padding is told by masks. Or pass pad_id= to the dataset."
    )


def _load(name: str, use_fast: bool) -> Any:
    import transformers

    where, options = name, {}
    if name.endswith('.gguf'):
        where, options = str(Path(name).parent), {'gguf_file': Path(name).name}
    try:
        return transformers.AutoTokenizer.from_pretrained(where, use_fast=use_fast, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        exists = Path(name).exists()
        what = (
            'no tokenizer can be read from it' if exists else 'no such path, and no hub id that is cached or reachable'
        )
        raise ModelNotFoundError(
            f"tokenizer '{name}': {what}. Expected a directory with tokenizer.json (or tokenizer.model) and "
            "tokenizer_config.json, a .gguf file, or a hub id. "
            f"transformers says: {error}"
        ) from error
