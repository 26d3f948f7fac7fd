"""Stop strings: a turn ends with the token that completes one of them in its text.

The ids stay as they were sampled: if the last token has text after the stop string, that text is part of the turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import FinishReason, Generation
from agentloop.errors import EngineError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class StopStrings:
    """Search for stop strings in the text of turns."""

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        assert strings
        assert all(strings), "an empty string would stop everywhere"
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        # Each visible token has at least one byte. Add two tokens: one may complete a character, and some tokenizers
        # decode the first word of a text without its leading space.
        self._window = max(len(string.encode()) for string in strings) + 2

    def completed_by(self, ids: Sequence[int]) -> bool:
        """Return whether the last token of a turn completes a stop string, assuming that no earlier token does."""
        return self._is_in(ids[-self._window :])

    def end(self, ids: Sequence[int]) -> int | None:
        """Return the number of tokens up to and including the one that completes the first stop string, or None.

        The search starts at the end, where stop strings usually are, so that a turn is not decoded once per token.
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


def up_to_stop(turn: Generation, stops: StopStrings) -> Generation:
    """Cut a turn after its first stop string, for engines that look for one only after several tokens."""
    end = stops.end(turn.ids)
    if end is None:
        return turn
    cut = turn.ids[:end], turn.logprobs[:end], turn.versions[:end]
    return Generation(*cut, FinishReason.STOP, turn.metrics, turn.routed)


class StopFinder:
    """`StopStrings` of one model, whose tokenizer is loaded for the first turn with stop strings."""

    def __init__(self, model: object) -> None:
        """Set the model, a folder or a name, whose tokenizer is used."""
        self._model = model
        self._tokenizer: Any = None
        self._made: dict[tuple[str, ...], StopStrings] = {}

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of transformers. Raises `EngineError` if the engine has no model folder or name."""
        if self._tokenizer is None:
            if not isinstance(self._model, str | Path):
                raise EngineError("stop strings need the model's tokenizer: create the engine with a folder or a name")
            from transformers import AutoTokenizer

            try:
                self._tokenizer = AutoTokenizer.from_pretrained(self._model)
            except (OSError, ValueError) as error:
                raise EngineError(
                    f"stop strings need the model's tokenizer, but it cannot be loaded: {error}"
                ) from error
        return self._tokenizer

    def of(self, strings: tuple[str, ...]) -> StopStrings | None:
        """Return the `StopStrings` of some strings; None without strings."""
        if not strings:
            return None
        if strings not in self._made:
            self._made[strings] = StopStrings(self.tokenizer.backend_tokenizer, strings)
        return self._made[strings]
