"""Stop strings: a turn ends with the token that completes one of them in its text.

Nothing is cut out of a token: where the last one says more than the stop string, that is part of the turn, and the ids
stay those that were sampled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.errors import EngineError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class StopStrings:
    """Looks for some strings in the text of turns."""

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        assert strings
        assert all(strings), "an empty string would stop everywhere"
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        # A token that shows anything has a byte at least. Two more: one may be the rest of a character, and some
        # tokenizers write the first word of a text without the space before it.
        self._window = max(len(string.encode()) for string in strings) + 2

    def completed_by(self, ids: Sequence[int]) -> bool:
        """Whether the last token of a turn completes a stop string, given that none before it does."""
        return self._is_in(ids[-self._window :])

    def end(self, ids: Sequence[int]) -> int | None:
        """How many tokens a turn has up to and with the one that completes the first stop string; None without one.

        Looked for from the end, where it mostly is: a turn is not decoded once a token.
        """
        if not self._is_in(ids):
            return None
        end, step = len(ids), 1
        while end > step and self._is_in(ids[: end - step]):
            end, step = end - step, 2 * step
        return bisect_left(range(end), True, lo=max(0, end - step), key=lambda length: self._is_in(ids[:length]))

    def _is_in(self, ids: Sequence[int]) -> bool:
        text = str(self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=False))
        return any(string in text for string in self._strings)


class StopFinder:
    """`StopStrings` of one model. Its tokenizer is loaded when the first turn has stop strings."""

    def __init__(self, model: object) -> None:
        """`model`: a folder or a name."""
        self._model = model
        self._tokenizer: Any = None
        self._made: dict[tuple[str, ...], StopStrings] = {}

    @property
    def tokenizer(self) -> Any:
        """That of transformers. Raises `EngineError` where the engine was not given a model with one."""
        if self._tokenizer is None:
            if not isinstance(self._model, str | Path):
                raise EngineError("stop strings need the model's tokenizer: give the engine a folder or a name")
            from transformers import AutoTokenizer

            try:
                self._tokenizer = AutoTokenizer.from_pretrained(self._model)
            except (OSError, ValueError) as error:
                raise EngineError(f"stop strings need the model's tokenizer, which cannot be read: {error}") from error
        return self._tokenizer

    def of(self, strings: tuple[str, ...]) -> StopStrings | None:
        """None where there are no strings."""
        if not strings:
            return None
        if strings not in self._made:
            self._made[strings] = StopStrings(self.tokenizer.backend_tokenizer, strings)
        return self._made[strings]
