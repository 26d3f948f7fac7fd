"""Learning rate of an optimizer update, and the log message for a skipped update."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import Sample

_MOST_NAMED = 16


def learning_rate(config: LearnerConfig, update: int) -> float:
    """Return the learning rate of an update, counted from 0: warm-up, then constant, linear or cosine.

    After the end of the schedule the rate keeps its last value.
    """
    if update < config.warmup_updates:
        return config.lr * (update + 1) / (config.warmup_updates + 1)
    if config.lr_schedule == "constant":
        return config.lr
    assert config.total_updates is not None, "checked when the learner is made"
    length = max(config.total_updates - config.warmup_updates, 1)
    done = min((update - config.warmup_updates) / length, 1.0)
    if config.lr_schedule == "linear":
        return config.lr * (1.0 - done)
    return config.lr * 0.5 * (1.0 + math.cos(math.pi * done))


def describe_skipped(
    samples: Sequence[Sample], rows: Sequence[Sequence[int]], losses: Sequence[float], norm: float
) -> str:
    """Return the log message for an update that was skipped because its loss or gradient is not finite.

    `rows` has the micro-batches of this rank as sample indices, `losses` their shares of the loss. The message names
    the trajectories of micro-batches whose loss is not finite, or all trajectories if every loss is finite.
    """
    guilty = [row for row, loss in zip(rows, losses, strict=True) if not np.isfinite(loss)]
    indices = sorted(index for row in guilty or rows for index in row)
    names = [samples[index].trajectory_id or f"sample {index}" for index in indices[:_MOST_NAMED]]
    more = f" and {len(indices) - _MOST_NAMED} more" if len(indices) > _MOST_NAMED else ""
    cause = "their loss is not finite" if guilty else f"every loss is finite, but the gradient norm is {norm}"
    return f"Skipped an update. Its trajectories on this rank ({cause}): {', '.join(names) or 'none'}{more}."
