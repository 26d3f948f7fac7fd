"""Settings of a second model that is trained beside the policy: a critic, or a process reward model."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentloop.config.learner import LearnerConfig
from agentloop.registry.options import Config, ConfigPath


class AuxiliaryModelConfig(Config):
    """A model that is trained beside the policy. What is not said here is as in `learner`."""

    model: ConfigPath | None = None
    """Folder of the model that it starts from; None: that of the policy."""
    lr: float = Field(default=1e-5, ge=0)
    mini_batches: int = Field(default=1, ge=1)
    """Optimizer updates that one batch is split into."""

    def _as_learner(self, learner: LearnerConfig, loss: str, options: dict[str, Any]) -> LearnerConfig:
        own = {"model": self.model or learner.model, "lr": self.lr, "mini_batches": self.mini_batches}
        plain = {"corrections": (), "old_logprobs": "auto", "kl_coef": 0.0, "reference": None, "entropy_bonus": 0.0}
        schedule = {"lr_schedule": "constant", "total_updates": None}
        objective = {"loss": loss, "loss_options": options, "aggregation": None, "recording": None}
        return learner.replace(**own, **plain, **schedule, **objective)


class CriticConfig(AuxiliaryModelConfig):
    """The critic of advantages that learn from one (`gae`): the backbone of the model with a value head."""

    clip: float | None = Field(default=0.5, gt=0)
    """How far a value may gain by moving in one step; None: no bound."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which only the critic is trained: the advantages of one that knows nothing are noise."""

    def as_learner(self, learner: LearnerConfig) -> LearnerConfig:
        return self._as_learner(learner, "value", {"clip": self.clip})


class ProcessRewardConfig(AuxiliaryModelConfig):
    """The implicit process reward model of `prime`: a language model that is trained to tell good episodes from bad
    ones by beta * log(model / the model that it started from). Rewards must be from 0 to 1."""

    lr: float = Field(default=1e-6, ge=0)
    beta: float = Field(default=0.05, gt=0)

    def as_learner(self, learner: LearnerConfig) -> LearnerConfig:
        settings = self._as_learner(learner, "implicit_reward", {"beta": self.beta})
        return settings.replace(reference=settings.model)
