"""`GrammarCompiler`: the allowed tokens of constrained turns, for one tokenizer (xgrammar, arXiv 2411.15100)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentloop.errors import UserError
from agentloop.registry.extras import naming_extras
from agentloop.types.grammar import Grammar

_CACHE_BYTES = 256 << 20
_ORIGIN = re.compile(r"^\[[\d:]+\] \S+: (Check failed: .*? is false: )?")
"""Source location at the start of xgrammar's messages."""


class Masks(NamedTuple):
    """The allowed tokens at some places of a turn; elsewhere all tokens are allowed."""

    places: NDArray[np.int64]
    """Indices of tokens of the turn, ascending, [num_masks]."""
    bits: NDArray[np.int32]
    """[num_masks, ceil(vocabulary / 32)]; bit i of word w is set if token 32 w + i is allowed."""


class GrammarState:
    """The state of a grammar within one turn."""

    def __init__(self, matcher: Any, mask: Any) -> None:
        self._matcher = matcher
        self._mask = mask

    def allowed(self) -> NDArray[np.int32] | None:
        """Return the bits of the tokens allowed next; None if all are, for example after the end of the turn.

        The array is overwritten by the next call.
        """
        if self._matcher.is_terminated() or not self._matcher.fill_next_token_bitmask(self._mask):
            return None
        bits: NDArray[np.int32] = self._mask[0].numpy()
        return bits

    def accept(self, token: int) -> bool:
        """Advance by a token; return whether the grammar allows it."""
        return bool(self._matcher.is_terminated() or self._matcher.accept_token(token))


class GrammarCompiler:
    """Compiles grammars for a tokenizer of transformers; `vocabulary` is the number of logits of the model.

    Raises `UserError` if xgrammar is not installed or does not support the tokenizer.
    """

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        with naming_extras():
            import xgrammar

        self._xgrammar = xgrammar
        self._vocabulary = vocabulary
        try:
            info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"xgrammar cannot constrain turns with this tokenizer: {error}") from error
        self._stops = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
        """Tokens at which engines end a turn regardless of the request."""
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=_CACHE_BYTES)

    def begin(self, grammar: Grammar) -> GrammarState:
        """Return the state before the first token of a turn. Compiled grammars are cached.

        Any thread may call it. Raises `UserError` for a grammar that xgrammar does not support.
        """
        try:
            compiled = self._compiler.compile_structural_tag(grammar.text)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"The grammar cannot be used: {_reason(error)}") from error
        stops = sorted(self._stops.union(grammar.stop_token_ids))
        matcher = self._xgrammar.GrammarMatcher(compiled, override_stop_tokens=stops)
        return GrammarState(matcher, self._xgrammar.allocate_token_bitmask(1, self._vocabulary))

    def masks(self, grammar: Grammar, ids: Sequence[int]) -> Masks:
        """Return the allowed tokens at each token of a sampled turn.

        Raises `UserError` if the grammar does not allow the turn.
        """
        state = self.begin(grammar)
        places, rows = [], []
        for place, token in enumerate(ids):
            bits = state.allowed()
            if bits is not None:
                places.append(place)
                rows.append(bits.copy())
            if not state.accept(int(token)):
                raise UserError(
                    f"Token {place} of a turn, with id {token}, is not allowed by its grammar. The engine sampled it "
                    "with another version of xgrammar or another tokenizer. Use the same ones for engine and learner."
                )
        words = -(-self._vocabulary // 32)
        return Masks(np.array(places, np.int64), np.stack(rows) if rows else np.zeros((0, words), np.int32))


def _reason(error: Exception) -> str:
    return _ORIGIN.sub("", str(error).strip().partition("\n")[0]).rstrip(".") + "."
