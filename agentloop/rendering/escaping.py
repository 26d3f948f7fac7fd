r"""`Escaping`: hides control tokens in untrusted text from the chat template and the tokenizer.

A hidden text passes through the template as two lone surrogates. Valid text cannot contain these, and templates do not
change them, but for lists that they write as Python does: its `repr` spells surrogates as `\ud800\udc07`. It hides

- added tokens, `<|im_end|>`;
- the first character of a partial token at the end of a text, `<|im_`: the next text may complete it;
- the first character of a text that completes a token which the template begins: `think` in `'<' ~ name ~ '>'`;
- the u of a text that spells a surrogate itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_END_OF_LITERAL = re.compile(r"['\"]|\s*\{[{%]")
_SPELLED_CODE = re.compile(r"((?<!\\)(?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
_SPELLED_SURROGATE = re.compile(r"(?<=\\)u(?=d[89a-f][0-9a-f]{2})")
_NOTHING: frozenset[str] = frozenset()
_SCHEMA_WORDS = frozenset(
    [
        "type",
        "function",
        "name",
        "description",
        "parameters",
        "arguments",
        "properties",
        "required",
        "items",
        "enum",
        "const",
        "default",
        "object",
        "array",
        "string",
        "integer",
        "number",
        "boolean",
        "null",
        "anyOf",
        "oneOf",
        "allOf",
        "additionalProperties",
        "$ref",
        "$defs",
    ]
)
"""Words of tool schemas and calls that templates look up and compare."""


class Escaping:
    """Hides and shows the added tokens of one tokenizer."""

    def __init__(self, added: Iterable[str]) -> None:
        tokens = sorted(filter(None, added), key=len, reverse=True)
        self._tokens = tokens
        characters = {character for token in tokens for character in token} | {"u"}
        self._hidden = [*tokens, *sorted(characters - set(tokens))]
        self._codes = {text: chr(0xD800 + i // 1024) + chr(0xDC00 + i % 1024) for i, text in enumerate(self._hidden)}
        self._token_re = re.compile("(" + "|".join(map(re.escape, tokens)) + ")") if tokens else None
        # Tokens that begin like a word are not control tokens, and many words end with a part of them.
        marks = [token for token in tokens if not token[0].isalnum() and not token[0].isspace()]
        self._halves = frozenset(half for token in marks for half in accumulate(token[:-1]))
        self._longest_half = max(map(len, self._halves), default=0)

    def seams(self, template: str) -> frozenset[str]:
        """Return the remainders of tokens whose beginning the template writes directly before a value."""
        ends = (match.start() for match in _END_OF_LITERAL.finditer(template))
        halves = {
            template[end - length : end] for end in ends for length in range(1, min(end, self._longest_half) + 1)
        } & self._halves
        return frozenset(
            token[len(half) :] for half in halves for token in self._tokens if token.startswith(half) and token != half
        )

    def hide(self, text: str, *, keep: frozenset[str] = _NOTHING, seams: frozenset[str] = _NOTHING) -> str:
        """Return the text with its control tokens hidden, except the tokens `keep`."""
        text = _SURROGATE.sub("\ufffd", text)
        if "\\ud" in text:
            text = _SPELLED_SURROGATE.sub(self._codes["u"], text)
        if self._token_re is None or not text:
            return text
        pieces = self._token_re.split(text)
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                pieces[index] = self._without_half(piece)
            elif piece not in keep:
                pieces[index] = self._codes[piece]
        start = text.strip()
        if start and any(start.startswith(rest) or rest.startswith(start) for rest in seams):
            first = start[0]
            pieces[0] = pieces[0].replace(first, self._codes[first], 1)
        return "".join(pieces)

    def hide_inside(self, value: Any, *, seams: frozenset[str] = _NOTHING) -> Any:
        """Return a JSON value with hidden texts and keys, except the vocabulary of schemas."""
        if isinstance(value, str):
            return value if value in _SCHEMA_WORDS else self.hide(value, seams=seams)
        if isinstance(value, Mapping):
            return {
                self.hide_inside(key, seams=seams): self.hide_inside(each, seams=seams) for key, each in value.items()
            }
        if isinstance(value, Sequence):
            return [self.hide_inside(each, seams=seams) for each in value]
        return value

    def show(self, text: str) -> str:
        """Invert `hide`."""
        if "\\ud" in text:
            text = _SPELLED_CODE.sub(lambda match: match[1] + chr(int(match[2], 16)) + chr(int(match[3], 16)), text)
        return _ESCAPED.sub(
            lambda match: self._hidden[(ord(match[0][0]) - 0xD800) * 1024 + ord(match[0][1]) - 0xDC00], text
        )

    def _without_half(self, text: str) -> str:
        """Hide the first character of a partial token at the end of a text, before white space that may be stripped."""
        end = len(text.rstrip())
        for start in range(end - 1, max(end - self._longest_half, 0) - 1, -1):
            if text[start:end] in self._halves:  # a longer partial token ends with this one
                return text[:start] + self._codes[text[start]] + text[start + 1 :]
        return text
