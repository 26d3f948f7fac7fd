"""The trainer's model: its configuration, and what the run loop asks of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from agentloop.config import Config
from agentloop.engines.base import Engine
from agentloop.trainer.batch import TrainBatch
from agentloop.trainer.losses import Aggregation


class LearnerConfig(Config):
    """How the policy is trained. Loss and averaging apply to sampled tokens only."""

    model: str
    """Folder of the model in Hugging Face format."""
    backend: Literal["fsdp"] = "fsdp"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the parameters that the optimizer changes, and of its state."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations, and of the weights that are published; the softmax is float32 in any case."""
    gradient_checkpointing: bool = False
    """Keep the inputs of layers only and compute the rest again in the backward: less memory, a third more work."""

    loss: str = "ppo"
    """`ppo`, `sft` or a registered one."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """Of that loss; ppo: clip_low, clip_high, dual_clip."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """How the losses of tokens become one."""
    aggregation_norm: float = Field(default=1024.0, gt=0)
    """The constant of `seq_mean_token_sum_norm`, in tokens."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Times the entropy of each sampled token's distribution, taken from its loss."""
    importance_cap: float | None = Field(default=None, gt=0)
    """Truncated importance sampling between learner and engine with this cap (2 is usual). It costs a pass for
    logprobs where mini_batches is above 1. None: rollout logprobs are taken as the old ones."""
    temperature: float = Field(default=1.0, gt=0)
    """That the engine sampled with."""

    lr: float = Field(default=1e-6, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up; linear and cosine reach 0 at total_updates."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates in which the learning rate grows linearly to lr."""
    total_updates: int | None = Field(default=None, gt=0)
    """Length of the schedule, warm-up included; needed by linear and cosine."""
    grad_clip: float | None = Field(default=1.0, gt=0)
    """Largest norm of the gradient; None does not clip."""

    mini_batches: int = Field(default=1, ge=1)
    """Optimizer updates that one batch is split into."""
    token_budget: int = Field(default=16384, ge=1)
    """Most tokens of one micro-batch; bounds memory, not the result. No trajectory may be longer."""
    skip_zero_advantage: bool = True
    """Leave out the passes of trajectories whose advantage is 0 where that does not change the gradient; they still
    count in the averages of the loss, but not in the metrics of the policy."""
    seed: int = 0


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


class Learner(Protocol):
    """Holds the weights that are trained."""

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """Train on a batch, each sample once, in `mini_batches` updates, and say how it went.

        Blocks; call it from a thread where an event loop must go on. Raises `UserError` where a trajectory is longer
        than the token budget.
        """
        ...

    async def publish(self, engine: Engine, version: int) -> None:
        """Give the engine the current weights under their Hugging Face names, as `version`."""

    def save(self, folder: Path) -> None:
        """Everything that an exact resume needs, into a folder that appears whole or not at all."""

    def load(self, folder: Path) -> None:
        """Go on from `save`. Raises `UserError` where the folder does not hold a state of this model."""

    def save_hf(self, folder: Path) -> None:
        """Model and tokenizer as a folder that transformers' `from_pretrained` loads."""


def create(config: LearnerConfig) -> Learner:
    """The learner of `config.backend`. Raises `UserError` where the configuration or the model cannot be used."""
    from agentloop.trainer.backends.fsdp import FsdpLearner

    return FsdpLearner(config)
