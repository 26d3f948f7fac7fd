"""`AlgorithmConfig`: which episodes are played for a step, and what each is worth."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentloop.registry.options import Config, ConfigPath


class OverlongConfig(Config):
    """Soft punishment of episodes that sample much (DAPO, arXiv 2503.14476): the reward falls by up to `penalty`, in
    proportion to how far into the last `buffer` tokens below `max_sampled_tokens` an episode reaches. Only what the
    model sampled counts; long observations are not its fault."""

    max_sampled_tokens: int = Field(ge=1)
    """From here on the whole penalty applies."""
    buffer: int = Field(ge=1)
    """Tokens below that in which the penalty grows from 0."""
    penalty: float = Field(default=1.0, gt=0)

    def reward(self, num_sampled: int) -> float:
        """What is added to the reward, 0 or less."""
        excess = num_sampled - (self.max_sampled_tokens - self.buffer)
        return -self.penalty * min(max(excess / self.buffer, 0.0), 1.0)


class DynamicSamplingConfig(Config):
    """Train on groups with unequal rewards only, and play more tasks until there are enough (DAPO, arXiv 2503.14476).
    Groups without a difference have no gradient: they make the batch smaller than it looks."""

    oversampling: float = Field(default=1.0, ge=1)
    """Tasks that are played at once, for each group that is still needed; above 1 saves rounds and may waste groups."""
    max_rounds: int = Field(default=10, ge=1)
    """Rounds of playing before a step trains on what it has."""


class AlgorithmConfig(Config):
    advantage: ConfigPath = "grpo"
    """`grpo`, `dr_grpo`, `rloo`, `opo`, `gpg`, `remax`, `reinforce_pp`, `reinforce_pp_baseline`, `gae`, `prime`,
    `turn_grpo`, `gigpo`, or one that a file registers, 'file.py:name'."""
    advantage_options: dict[str, Any] = Field(default_factory=dict)
    """Of that advantage; gigpo: gamma, step_weight, normalise."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of one task."""
    groups_per_step: int = Field(default=16, ge=1)
    """Tasks of one step."""
    dynamic_sampling: DynamicSamplingConfig | None = None
    """None: every group is trained on."""
    overlong: OverlongConfig | None = None
    """None: episodes may be as long as the limits allow."""
    drop_truncated: bool = False
    """Leave episodes that a limit ended out of the loss; in the statistics of their group they count (DAPO's overlong
    filtering)."""
    kl_in_reward: float = Field(default=0.0, ge=0)
    """Times log policy - log reference of each sampled token, taken from the reward; needs learner.reference."""
