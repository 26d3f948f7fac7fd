"""`TextEncoder`: encodes text so that untrusted text never becomes a control token.

A tokenizer turns the text `<|im_end|>` into a control token everywhere, even inside a tool result, where it would end
the turn for the model. So text is encoded in pieces. Added tokens (special or not) are recognised only in text of the
template or the recipe (`escaping` hides the others). A copy of the tokenizer without added tokens encodes the text
between them. Tokenizers encode pieces between added tokens independently anyway, so nothing else changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from agentloop.rendering.escaping import Escaping
from agentloop.rendering.word_cache import word_cache_for

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

_SURROGATE = re.compile("[\ud800-\udfff]")
_ANCHOR = "\ue0a1\ue0a2anchor\ue0a3"


class TextEncoder:
    """Encodes and decodes text with one tokenizer (`tokenizers.Tokenizer`)."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.added: dict[str, int] = {token.content: token_id for token_id, token in added.items()}
        self.special = frozenset(token.content for token in added.values() if token.special)
        """Added tokens that are marked as special; other added tokens are tags that models write, such as <think>."""
        self.escaping = Escaping(self.added)
        self._added_re = _pattern([_with_flags(token) for token in _longest_first(added.values())])
        self.plain, self._anchor = _plain_copy(backend, list(self.added))
        """Tokenizer without added tokens."""
        self._leaks = self._find_leaks()
        self._pieces = _BytesOfTokens(backend) if _is_byte_level(backend) else None
        self.words = word_cache_for(self.plain) if not self._anchor and not self._leaks else None
        """Cache of encoded words; None for tokenizers that do not encode word by word."""

    def split(self, text: str) -> list[str]:
        """Split rendered text into pieces: plain, added token, plain, ..., plain.

        White space that an added token absorbs (its lstrip and rstrip flags) belongs to its piece.
        """
        return self._added_re.split(text) if self._added_re else [text]

    def encode_rendered(self, text: str, *, at_start: bool = False) -> list[int]:
        """Return the ids of rendered text that may contain escapes.

        With `at_start` the text begins the stream. Otherwise it follows an added token, which matters for tokenizers
        that mark the beginning of a text.
        """
        ids: list[int] = []
        for index, piece in enumerate(self.split(text)):
            if index % 2:
                ids.append(self.added[piece.strip()] if piece not in self.added else self.added[piece])
            elif piece:
                ids += self.encode_plain(self.escaping.show(piece), at_start=at_start and index == 0)
        return ids

    def encode_plain(self, text: str, *, at_start: bool = False) -> list[int]:
        """Return the ids of text without control tokens."""
        if self.words is not None and text.isascii():
            return self.words.encode(text)
        if self._leaks and self._leaks.search(text):
            return self._encode_broken(text)
        anchor = "" if at_start else self._anchor
        try:
            ids: list[int] = self.plain.encode(anchor + text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):  # lone surrogates, from bytes that are not UTF-8 (surrogateescape)
            ids = self.plain.encode(anchor + _SURROGATE.sub("\ufffd", text), add_special_tokens=False).ids
        return ids[1:] if anchor else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, added tokens included."""
        if self._pieces is not None:
            return b"".join(map(self._pieces.__getitem__, ids)).decode("utf-8", "replace")
        return str(self._backend.decode(ids if isinstance(ids, list) else list(ids), skip_special_tokens=False))

    def _find_leaks(self) -> re.Pattern[str] | None:
        """Return a pattern of added tokens that the plain vocabulary also contains, as in some unigram vocabularies."""
        added_ids = set(self.added.values())
        leaks = [text for text in self.added if len(text) > 1 and not added_ids.isdisjoint(self.plain.encode(text).ids)]
        return (
            re.compile("|".join(f"(?<={re.escape(text[0])})(?={re.escape(text[1:])})" for text in leaks))
            if leaks
            else None
        )

    def _encode_broken(self, text: str) -> list[int]:
        """Encode text cut after the first character of each leak, so that no leak becomes its token."""
        assert self._leaks is not None
        cuts = [0, *(match.start() for match in self._leaks.finditer(text)), len(text)]
        pieces = (text[start:end] for start, end in pairwise(cuts))
        return [token_id for piece in pieces for token_id in self.plain.encode(piece, add_special_tokens=False).ids]


class _BytesOfTokens(dict[int, bytes]):
    """The bytes of each id, if the decoder is ByteLevel, which concatenates them independently of their neighbours.

    Joining them here takes a fifth of the time of the decoder, which makes a string of every token first.
    """

    def __init__(self, backend: Tokenizer) -> None:
        super().__init__()
        self._token_of = backend.id_to_token

    def __missing__(self, token_id: int) -> bytes:
        token = self._token_of(token_id) or ""  # the decoder skips ids beyond the vocabulary, too
        try:
            piece = bytes(map(_BYTE_OF.__getitem__, token))
        except KeyError:  # an added token: its text stands for itself
            piece = token.encode()
        self[token_id] = piece
        return piece


def _byte_of_each_character() -> dict[str, int]:
    """Return the alphabet of ByteLevel: printable bytes are themselves, the others follow from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_of_each_character()


def _is_byte_level(backend: Tokenizer) -> bool:
    from tokenizers import decoders

    return isinstance(backend.decoder, decoders.ByteLevel)


def _longest_first(tokens: Iterable[AddedToken]) -> list[AddedToken]:
    return sorted((token for token in tokens if token.content), key=lambda token: -len(token.content))


def _with_flags(token: AddedToken) -> str:
    text = re.escape(token.content)
    if token.single_word:
        text = rf"(?<!\w){text}(?!\w)"
    return (r"\s*" if token.lstrip else "") + text + (r"\s*" if token.rstrip else "")


def _pattern(alternatives: list[str]) -> re.Pattern[str] | None:
    return re.compile("(" + "|".join(alternatives) + ")") if alternatives else None


def _plain_copy(backend: Tokenizer, added: Sequence[str]) -> tuple[Tokenizer, str]:
    """Return the tokenizer without added tokens, and an anchor text.

    With the anchor before it, a piece is encoded as after an added token. The anchor is empty for byte-level
    tokenizers, which encode a piece in the same way everywhere.
    """
    from tokenizers import AddedToken, Tokenizer

    state = json.loads(backend.to_str())
    state.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    plain = Tokenizer.from_str(json.dumps(state))
    if not added:
        return plain, ""
    mark = added[0]
    after = backend.encode(f"{mark}probe of words", add_special_tokens=False).ids[1:]
    if after == plain.encode("probe of words").ids:
        return plain, ""
    plain.add_special_tokens([AddedToken(_ANCHOR, normalized=False)])
    return plain, _ANCHOR
