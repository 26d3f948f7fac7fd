"""`Grammar`: the form that the tokens of a constrained turn have."""

from __future__ import annotations

from typing import NamedTuple


class Grammar(NamedTuple):
    """Form of one turn. An engine samples only tokens that continue it, from their distribution without the others."""

    text: str
    """A structural tag of xgrammar, in JSON."""
    stop_token_ids: tuple[int, ...]
    """Tokens that may end the turn where its form is complete."""


class ConstrainedTurn(NamedTuple):
    """Tokens `start:end` of a stream, which were sampled with a grammar."""

    start: int
    end: int
    grammar: Grammar
