"""`AlgorithmConfig`: the episodes of a step and their advantages."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from agentloop.registry.options import Config, ConfigPath


class OverlongConfig(Config):
    """Soft penalty for long episodes (DAPO, arXiv 2503.14476).

    Within the last `buffer` tokens below `max_sampled_tokens` the reward falls linearly by up to `penalty`. Only
    sampled tokens count, summed over all token streams of the episode: the model does not cause long observations.
    """

    max_sampled_tokens: int = Field(ge=1)
    """Number of sampled tokens from which the whole penalty applies."""
    buffer: int = Field(ge=1)
    """Number of tokens below `max_sampled_tokens` over which the penalty grows from 0."""
    penalty: float = Field(default=1.0, gt=0)
    """Largest amount by which the reward falls."""

    @model_validator(mode="after")
    def _begins_above_zero(self) -> Self:
        if self.buffer > self.max_sampled_tokens:
            raise ValueError(
                f"algorithm.overlong.buffer is {self.buffer} but max_sampled_tokens is {self.max_sampled_tokens}: "
                "every episode would be penalised. Set buffer to max_sampled_tokens or less"
            )
        return self

    def reward(self, num_sampled: int) -> float:
        """Return the amount that is added to the reward, 0 or less."""
        excess = num_sampled - (self.max_sampled_tokens - self.buffer)
        return -self.penalty * min(max(excess / self.buffer, 0.0), 1.0)


class DynamicSamplingConfig(Config):
    """Train only on groups with a nonzero advantage; play tasks until there are enough (DAPO, arXiv 2503.14476).

    Groups without one, such as those with equal rewards, have no gradient, so they only shrink the effective batch.
    """

    oversampling: float = Field(default=1.0, ge=1)
    """Number of tasks played at once for each group that is still needed. Values above 1 save rounds but may waste
    groups."""
    max_rounds: int = Field(default=10, ge=1)
    """Number of rounds after which the step trains on the groups it has."""


class DistillationConfig(Config):
    """On-policy distillation: a teacher scores the tokens that the model samples (GKD, arXiv 2306.13649).

    Adds `weight` * (log teacher - log policy) of each sampled token to its advantage, which minimises the reverse KL to
    the teacher on the model's own episodes. Rewards still count; without `env.reward` every reward is 0.
    """

    teacher: ConfigPath
    """Folder of the teacher, which the learner loads as its reference model, or the address of an OpenAI API that
    returns `prompt_logprobs`, such as that of `vllm serve`: 'http://host:8000/v1'. It must share the tokenizer of the
    model."""
    served_name: str = ""
    """Name under which the service offers the teacher; empty: the first model of the service."""
    weight: float = Field(default=1.0, gt=0)
    """Factor of log teacher - log policy."""

    @property
    def is_served(self) -> bool:
        """Whether the teacher is a service."""
        return "://" in self.teacher


class AlgorithmConfig(Config):
    """The episodes of a step, and how their rewards become advantages."""

    advantage: ConfigPath = "grpo"
    """`grpo`, `dr_grpo`, `rloo`, `opo`, `gpg`, `remax`, `reinforce_pp`, `reinforce_pp_baseline`, `gae`, `prime`,
    `turn_grpo`, `gigpo`, `state_td`, or 'file.py:name' for one that the file registers."""
    advantage_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the advantage; for gigpo: gamma, step_weight, normalise."""
    group_size: int = Field(default=8, ge=1)
    """Number of episodes per task."""
    groups_per_step: int = Field(default=16, ge=1)
    """Number of tasks per step."""
    dynamic_sampling: DynamicSamplingConfig | None = None
    """Train only on groups with a nonzero advantage, and play tasks until there are enough (DAPO, arXiv 2503.14476).
    None: train on every group."""
    overlong: OverlongConfig | None = None
    """Soft penalty for long episodes (DAPO, arXiv 2503.14476). Within the last `buffer` tokens below
    `max_sampled_tokens` the reward falls linearly by up to `penalty`. Only sampled tokens count. None: no penalty."""
    drop_truncated: bool = False
    """Leave episodes that hit a limit out of the loss; they still count in the statistics of their group (overlong
    filtering of DAPO)."""
    kl_in_reward: float = Field(default=0.0, ge=0)
    """Factor of the KL penalty, log policy - log reference of each sampled token, that is subtracted from the reward;
    needs learner.reference."""
    distillation: DistillationConfig | None = None
    """On-policy distillation: add `weight` * (log teacher - log policy) of each sampled token to its advantage (GKD,
    arXiv 2306.13649). None: learn from rewards only."""
