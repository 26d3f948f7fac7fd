r"""Tiny run of ReTool: the questions of the recipe `tiny`, answers in a `\boxed{}`, and ReTool's +1 and -1.

    agentloop sft recipes/retool/tiny_sft.yaml

makes the checkpoint from that of `tiny`, by a cold start on traces, many of which answer without the tool.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentloop.recipes.tiny.task import held_out_rows, train_rows
from agentloop.recipes.tiny.traces import conversation, drawn_rows
from agentloop.types.messages import Message

__all__ = ["held_out_rows", "train_rows"]

GUESS_SHARE = 0.4
"""Share of the traces that answer without the tool."""


def cold_start_trace(rng: random.Random) -> list[Message]:
    """Draw a conversation of `tiny` in ReTool's format."""
    return conversation(rng, answer=r"\boxed{{{}}}", guess_share=GUESS_SHARE)


def warmup_rows(num_rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the conversations of the warm-up."""
    return drawn_rows(cold_start_trace, num_rows, seed)
