"""Learners that train a second model, such as a critic, together with the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentloop.engines.base import TakesWeights
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.protocol import Captured, Learner


class _CapturedTogether:
    """Captured states of several learners, each written to a folder with its name."""

    def __init__(self, states: Mapping[str, Captured]) -> None:
        self._states = states

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, state in self._states.items():
            state.write(folder / name)


class WithAuxiliaryModel:
    """A `Learner` of two models; log-probabilities, weights and Hugging Face folders belong to the policy."""

    def __init__(self, policy: Learner, auxiliary: Learner, name: str) -> None:
        """Combine two learners; `name` is the name of the auxiliary model in checkpoints and metrics."""
        self._policy = policy
        self._auxiliary = auxiliary
        self._name = name

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """Train both models; metrics of the auxiliary model have its name as prefix."""
        auxiliary = self._train_auxiliary(batch.auxiliary_samples)
        policy = self._policy.step(batch)
        return policy | {f"{self._name}/{key}": value for key, value in auxiliary.items()}

    def _train_auxiliary(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Train the auxiliary model; return the metrics that apply to it."""
        metrics = self._auxiliary.step(TrainBatch(samples))
        shown = ("loss", "grad_norm", "lr", "clip_fraction", "accuracy")
        return {name: metrics[name] for name in shown if name in metrics}

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        return self._policy.logprobs(samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        return self._policy.reference_logprobs(samples)

    async def publish(self, engine: TakesWeights, version: int) -> None:
        await self._policy.publish(engine, version)

    def sleep(self) -> None:
        self._policy.sleep()
        self._auxiliary.sleep()

    def wake(self) -> None:
        self._policy.wake()
        self._auxiliary.wake()

    def save(self, folder: Path) -> None:
        self.capture().write(folder)

    def capture(self) -> Captured:
        return _CapturedTogether({"policy": self._policy.capture(), self._name: self._auxiliary.capture()})

    def load(self, folder: Path) -> None:
        self._policy.load(folder / "policy")
        self._auxiliary.load(folder / self._name)

    def save_hf(self, folder: Path) -> None:
        """Write only the policy: the auxiliary model is not needed after training."""
        self._policy.save_hf(folder)

    def close(self) -> None:
        self._policy.close()
        self._auxiliary.close()


class ActorCritic(WithAuxiliaryModel):
    """A policy and its critic."""

    def __init__(self, policy: Learner, critic: Learner, *, warmup_steps: int = 0) -> None:
        super().__init__(policy, critic, "critic")
        self._warmup_steps = warmup_steps

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """Train both models; while the critic warms up, the policy gets no samples."""
        is_warm = all(sample.policy_version >= self._warmup_steps for sample in batch.samples)
        return super().step(batch if is_warm else TrainBatch([], auxiliary_samples=batch.auxiliary_samples))

    def values(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Return the value before each sampled token, float32 [num_sampled] per sample."""
        return self._auxiliary.logprobs(samples)

    def _train_auxiliary(self, samples: Sequence[Sample]) -> dict[str, float]:
        return super()._train_auxiliary(samples) | _explained_variance(samples)


class WithProcessReward(WithAuxiliaryModel):
    """A policy and the implicit process reward model that it learns from."""

    def __init__(self, policy: Learner, model: Learner, *, beta: float) -> None:
        super().__init__(policy, model, "process_reward")
        self._beta = beta

    def process_rewards(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Return beta * log(model / its reference) of each sampled token, float32 [num_sampled] per sample."""
        now, then = self._auxiliary.logprobs(samples), self._auxiliary.reference_logprobs(samples)
        return [self._beta * (new - old) for new, old in zip(now, then, strict=True)]


def _explained_variance(samples: Sequence[Sample]) -> dict[str, float]:
    """Return 1 - Var(target - value) / Var(target) of the values before the step; 1 is perfect, 0 a constant."""
    if not samples:
        return {}
    targets = np.concatenate([np.broadcast_to(sample.advantage, sample.num_sampled) for sample in samples])
    values = np.concatenate([sample.old_logprobs for sample in samples if sample.old_logprobs is not None])
    variance = targets.var()
    return {"explained_variance": float(1 - (targets - values).var() / variance)} if variance > 0 else {}
