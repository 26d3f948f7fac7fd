"""Whether learner and engine fit a GPU: each on one of its own, beside each other, or in turns."""

from __future__ import annotations

from dataclasses import dataclass

from agentloop.trainer.sizing.gpus import Gpu
from agentloop.trainer.sizing.memory import OUTSIDE, TrainingMemory

_GIB = 2**30
ENGINE_OUTSIDE = 3 * _GIB
"""Of an engine beside weights and cache: CUDA context, graphs, activations."""
ASLEEP = 2 * _GIB
"""Of it that stays on the GPU while it sleeps: the same without activations."""
_PINNED = 25e9
"""Bytes a second of one GPU to and from the memory of the host; assumed."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Sharing:
    """One GPU."""

    gpu: Gpu
    training: TrainingMemory
    engine_weights: float
    shelf: float
    """Bytes of published weights on the learner's GPU; in turns they are on the host."""
    is_shared: bool
    sleeps: bool

    @property
    def learner_away(self) -> float:
        """Bytes that the learner moves to the host, and back, for the engine's turn."""
        training = self.training
        kept = training.weights + training.optimizer + training.reference + training.companion
        return kept if self.sleeps else 0.0

    @property
    def beside_engine(self) -> float:
        """Bytes that are not the engine's while it samples."""
        if not self.is_shared:
            return 0.0
        return OUTSIDE + self.shelf + (0.0 if self.sleeps else self.training.total)

    @property
    def cache(self) -> float:
        """Bytes for keys and values; negative where not even the rest fits."""
        return self.gpu.memory - self.engine_weights - ENGINE_OUTSIDE - self.beside_engine

    @property
    def handover_seconds(self) -> float:
        """Of a step: the learner goes and comes, and weights go through the host instead of the GPU."""
        return (2 * self.learner_away + 2 * self.engine_weights) / _PINNED if self.sleeps else 0.0

    def obstacle(self, longest: float) -> str:
        """Why it does not fit, where an episode of the longest kind needs `longest` bytes of cache; else empty."""
        training, memory = self.training, self.gpu.memory
        beside = OUTSIDE + self.shelf + (ASLEEP if self.sleeps else 0.0)
        if training.total + beside > memory:
            kept = training.weights + training.compute_weights + training.gradients + training.optimizer
            kept += training.reference + training.companion
            what = "weights, gradients and optimizer alone" if kept > memory else "activations beside the weights"
            return f"The learner needs more than a GPU has ({memory / _GIB:.0f} GiB): {what}."
        if self.sleeps and self.learner_away + self.engine_weights + beside > memory:
            return "New weights come to the engine while the learner's are there, and both do not fit."
        if self.cache < longest:
            where = " beside the learner" if self.is_shared and not self.sleeps else ""
            return f"The engine{where} has no room for the cache of one episode of the longest kind."
        return ""
