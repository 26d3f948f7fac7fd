"""Settings of a second model that is trained with the policy: a critic or a process reward model."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentloop.config.learner import LearnerConfig
from agentloop.registry.options import Config, ConfigPath


class AuxiliaryModelConfig(Config):
    """A model that is trained with the policy. All other settings are those of `learner`."""

    model: ConfigPath | None = None
    """Folder of the initial model; None: the model of the policy."""
    lr: float = Field(default=1e-5, ge=0)
    """Learning rate; constant after `learner.warmup_updates`."""
    mini_batches: int = Field(default=1, ge=1)
    """Number of optimizer updates per batch."""

    def _as_learner(self, learner: LearnerConfig, loss: str, options: dict[str, Any]) -> LearnerConfig:
        own = {"model": self.model or learner.model, "lr": self.lr, "mini_batches": self.mini_batches}
        plain = {"corrections": (), "old_logprobs": "auto", "kl_coef": 0.0, "entropy_bonus": 0.0}
        plain |= {"reference": None, "reference_every": None}
        schedule = {"lr_schedule": "constant", "total_updates": None}
        objective = {"loss": loss, "loss_options": options, "aggregation": None, "recording": None}
        routing = {"router_replay": False}  # the recorded routing belongs to the policy's router
        return learner.replace(**own, **plain, **schedule, **objective, **routing)


class CriticConfig(AuxiliaryModelConfig):
    """The critic of the advantage `gae`: the backbone of the model with a value head."""

    clip: float | None = Field(default=0.5, gt=0)
    """Largest change of a value in one step; None: no bound."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of initial steps that train only the critic, because the advantages of an untrained critic are noise."""

    def as_learner(self, learner: LearnerConfig) -> LearnerConfig:
        """Return the settings of the critic's learner, given those of the policy."""
        return self._as_learner(learner, "value", {"clip": self.clip})


class ProcessRewardConfig(AuxiliaryModelConfig):
    """The implicit process reward model of `prime`.

    A language model learns to tell good episodes from bad ones by beta * log(model / its initial model) (arXiv
    2502.01456). Rewards must be from 0 to 1.
    """

    lr: float = Field(default=1e-6, ge=0)
    """Learning rate; constant after `learner.warmup_updates`."""
    beta: float = Field(default=0.05, gt=0)
    """Factor of the log-ratio to the initial model."""

    def as_learner(self, learner: LearnerConfig) -> LearnerConfig:
        """Return the settings of the process reward model's learner, given those of the policy."""
        settings = self._as_learner(learner, "implicit_reward", {"beta": self.beta})
        return settings.replace(reference=settings.model)
