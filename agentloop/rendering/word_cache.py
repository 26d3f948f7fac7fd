"""`WordCache`: encodes ASCII text word by word from a cache, for byte-level BPE tokenizers.

Such a tokenizer splits text into words by a regular expression and encodes each word independently, so the ids of words
can be cached. With a 32k vocabulary this takes 3 us instead of 20 for 11 tokens, and 110 instead of 700 for 420. The
cache supports patterns that it can translate, and is compared with the tokenizer before use.
"""

from __future__ import annotations

import json
import pickle
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MAX_WORDS = 100_000
_MAX_LENGTH = 64
"""Largest number of characters in a cached word."""

# The built-in pattern of ByteLevel in the tokenizers library, from GPT-2.
_BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ASCII_MEMBERS = {
    "L": "a-zA-Z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "Lt": "",
    "Lm": "",
    "Lo": "",
    "N": "0-9",
    "M": "",
    "P": r"!-#%-*,-/:;?@\[-\]_{}",
    "S": r"$+<->\^`|~",
}
_ASCII_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD"}
"""Normalizers that do not change ASCII."""


class WordCache:
    """Encodes ASCII text with a tokenizer without added tokens. Create it with `word_cache_for`."""

    def __init__(self, tokenizer: Tokenizer, pattern: re.Pattern[str]) -> None:
        self._tokenizer = tokenizer
        self._words = pattern.findall
        self._ids: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of ASCII text."""
        known = self._ids
        ids: list[int] = []
        for word in self._words(text):
            try:
                ids += known[word]
            except KeyError:
                ids += self._learn(word)
        return ids

    def _learn(self, word: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(word, add_special_tokens=False).ids
        if len(word) <= _MAX_LENGTH:
            if len(self._ids) >= _MAX_WORDS:
                self._ids.clear()
            self._ids[word] = ids
        return ids


def word_cache_for(tokenizer: Tokenizer) -> WordCache | None:
    """Return the cache of a tokenizer without added tokens; None if its word pattern is not supported."""
    model, normalizer, splitter = tokenizer.model, tokenizer.normalizer, tokenizer.pre_tokenizer
    if type(model).__name__ != "BPE" or model.dropout or splitter is None:
        return None
    if normalizer is not None and type(normalizer).__name__ not in _ASCII_NORMALIZERS:
        return None
    words = _words_of(pickle.dumps(splitter))
    return None if words is None else WordCache(tokenizer, words)


@lru_cache(maxsize=64)
def _words_of(pickled: bytes) -> re.Pattern[str] | None:
    """Return the regular expression that splits ASCII text as this pre-tokenizer does, or None."""
    splitter = pickle.loads(pickled)
    pattern = _word_pattern(json.loads(splitter.__getstate__()))
    ascii_pattern = None if pattern is None else _to_ascii(pattern)
    if ascii_pattern is None:
        return None
    try:
        compiled = re.compile(ascii_pattern, re.ASCII)
    except re.error:
        return None
    probe = _probe()
    spans = [match.span() for match in compiled.finditer(probe)]
    expected = [span for _, span in splitter.pre_tokenize_str(probe)]
    # findall would return groups instead of words, and skip gaps between words.
    if compiled.groups or spans != expected or sum(end - start for start, end in spans) != len(probe):
        return None
    return compiled


def _word_pattern(splitter: dict[str, Any]) -> str | None:
    """Return the regular expression of a pre-tokenizer; None unless there is exactly one."""
    steps = splitter["pretokenizers"] if splitter["type"] == "Sequence" else [splitter]
    *before, last = steps
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if not before and last.get("use_regex", True):
        return _BYTE_LEVEL
    if len(before) != 1 or before[0]["type"] != "Split" or last.get("use_regex", True):
        return None
    split = before[0]
    plain = split["behavior"] == "Isolated" and not split["invert"] and "Regex" in split["pattern"]
    return split["pattern"]["Regex"] if plain else None


def _to_ascii(pattern: str) -> str | None:
    """Translate the pattern to `re` for ASCII text, with Unicode properties as sets of ASCII characters."""
    result: list[str] = []
    in_class = False
    for token in re.findall(r"\\[pP]\{\^?\w+\}|\\.|.", pattern, re.DOTALL):
        if token.startswith(("\\p{", "\\P{")):
            members = _ASCII_MEMBERS.get(token[3:-1])
            if members is None or token[1] == "P":
                return None
            result.append(members if in_class else f"[{members}]" if members else "(?!)")
        else:
            if token in "[]":
                in_class = token == "["
            result.append(token)
    return "".join(result)


def _probe() -> str:
    """Return text with every pair of ASCII characters, and runs of each."""
    characters = [chr(code) for code in range(128)]
    pairs = "".join(first + second for first in characters for second in characters)
    return pairs + "".join(character * 3 for character in characters) + "I'll can't  do \r\n\n x1234 y\t\tz "
