"""`RoutedExperts`: the experts to which an engine routed tokens, so that the learner can use the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RoutedExperts(NamedTuple):
    """Experts of consecutive tokens of a token stream.

    The last token of a turn has none: the engine never processed it, and no sampled token depends on it.
    """

    start: int
    """Index of the first of these tokens in the stream."""
    experts: NDArray[np.integer]
    """Indices of experts, [num_tokens, decoder layers, k]; layers without experts have zeros."""

    @property
    def end(self) -> int:
        return self.start + len(self.experts)

    def part(self, start: int, end: int) -> RoutedExperts | None:
        """Return the experts of the tokens `start:end`; None if those of token `start` are unknown."""
        if not self.start <= start < min(end, self.end):
            return None
        return RoutedExperts(start, self.experts[start - self.start : end - self.start])


def joined(first: RoutedExperts | None, second: RoutedExperts | None) -> RoutedExperts | None:
    """Return the experts in `first`, followed by those of later tokens in `second`."""
    if first is None or second is None:
        return second if first is None else first
    rest = second.part(first.end, second.end)
    return first if rest is None else RoutedExperts(first.start, np.concatenate([first.experts, rest.experts]))
