"""`RoutedExperts`: the experts to which an engine routed tokens, so that the learner can use the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RoutedExperts(NamedTuple):
    """Experts of consecutive tokens of a token stream.

    The last token of a turn never has any: the engine has not computed it yet, and no sampled token depends on it.
    """

    start: int
    """Index of the first of these tokens in the stream."""
    experts: NDArray[np.integer]
    """Numbers of experts, [num_tokens, decoder layers, k]; layers without experts have zeros."""

    @property
    def end(self) -> int:
        return self.start + len(self.experts)

    def part(self, start: int, end: int) -> RoutedExperts | None:
        """Return those of the tokens `start:end`; None if that of `start` is not among them."""
        if not self.start <= start < min(end, self.end):
            return None
        return RoutedExperts(start, self.experts[start - self.start : end - self.start])


def joined(first: RoutedExperts | None, second: RoutedExperts | None) -> RoutedExperts | None:
    """Return what `first` knows, and behind it what only `second` knows."""
    if first is None or second is None:
        return second if first is None else first
    rest = second.part(first.end, second.end)
    return first if rest is None else RoutedExperts(first.start, np.concatenate([first.experts, rest.experts]))
