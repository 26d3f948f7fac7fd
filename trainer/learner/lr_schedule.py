"""Learning rates: warm-up, then constant, linear or cosine."""

from __future__ import annotations

import math

from agentloop.config.learner import (
    LearnerConfig,
)


def learning_rate(config: LearnerConfig, update: int) -> float:
    """Of update number `update`, from 0. Past the end of the schedule it stays at the last value."""
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
