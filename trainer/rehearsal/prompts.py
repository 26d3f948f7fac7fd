"""Measure the prompts of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from agentloop.episodes.prompt_lengths import Row, prompt_length

if TYPE_CHECKING:
    from agentloop.episodes.setup import RolloutSetup


def measure(setup: RolloutSetup, *, longest: int, most: int = 2000) -> tuple[str, list[str]]:
    """Return a summary of the lengths of the training prompts, and warnings about those that are too long.

    Of datasets with more than `most` prompts, every n-th prompt is measured.
    """
    every = -(-len(setup.train) // most)
    rows: Sequence[Row] = setup.train[::every]
    lengths = [prompt_length(row["messages"], setup.renderer, setup.toolset.schemas) for row in rows]
    sample = f"one in {every} of {len(setup.train)} rows" if every > 1 else f"all {len(rows)} rows"
    summary = f"{min(lengths)} to {max(lengths)} tokens, median {median(lengths):g} ({sample})"
    too_long = sum(length >= longest for length in lengths)
    if not too_long:
        return summary, []
    return summary, [
        f"{too_long} of {len(rows)} prompts leave no room to sample within {longest} tokens; their episodes fail. Set "
        f"data.max_prompt_tokens to skip such rows, or raise limits.max_tokens."
    ]
