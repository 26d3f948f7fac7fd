"""Memory of a GPU shared by a learner rank and an engine, concurrently or in turns."""

from __future__ import annotations

from dataclasses import dataclass

from agentloop.trainer.sizing.gpus import Gpu
from agentloop.trainer.sizing.memory import OUTSIDE, TrainingMemory

_GIB = 2**30
ENGINE_OUTSIDE = 3 * _GIB
"""Bytes of an engine in addition to weights and cache: CUDA context, graphs, activations."""
ASLEEP = 2 * _GIB
"""Bytes of a sleeping engine on the GPU: CUDA context and graphs."""
_PINNED = 25e9
"""Assumed bytes per second between one GPU and host memory."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Sharing:
    """Memory of one GPU of the learner and of one GPU of an engine, which may be the same."""

    gpu: Gpu
    training: TrainingMemory
    engine_weights: float
    new_weights: float
    """Bytes of the weights that an engine's GPU receives in a step."""
    shelf: float
    """Bytes of published weights on the learner's GPU; 0 if learner and engine take turns."""
    is_shared: bool
    """Whether learner and engine have the same GPU."""
    sleeps: bool
    """Whether they take turns: one sleeps while the other works."""

    @property
    def learner_away(self) -> float:
        """Bytes that the learner offloads to the host for the engine's turn."""
        training = self.training
        kept = training.weights + training.optimizer + training.reference + training.auxiliary
        return kept if self.sleeps else 0.0

    @property
    def beside_engine(self) -> float:
        """Bytes on the engine's GPU that belong to the learner while the engine samples."""
        if not self.is_shared:
            return 0.0
        return OUTSIDE + self.shelf + (0.0 if self.sleeps else self.training.total)

    @property
    def cache(self) -> float:
        """Bytes left for the KV cache; negative if the rest does not fit."""
        return self.gpu.memory - self.engine_weights - ENGINE_OUTSIDE - self.beside_engine

    @property
    def handover_seconds(self) -> float:
        """Seconds per step to offload and reload the learner, and to copy weights through host memory."""
        return (2 * self.learner_away + 2 * self.new_weights) / _PINNED if self.sleeps else 0.0

    def obstacle(self, longest: float) -> str:
        """Return why both do not fit if the longest episode needs `longest` bytes of cache; empty if they fit."""
        training, memory = self.training, self.gpu.memory
        beside = OUTSIDE + self.shelf + (ASLEEP if self.sleeps else 0.0)
        if training.total + beside > memory:
            kept = training.weights + training.compute_weights + training.gradients + training.optimizer
            kept += training.reference + training.auxiliary
            part = "weights, gradients and optimizer alone" if kept > memory else "activations in addition to weights"
            return f"The learner needs more than a GPU has ({memory / _GIB:.0f} GiB): {part}."
        if self.sleeps and self.learner_away + self.engine_weights + beside > memory:
            return "The engine receives new weights while the learner's are on the GPU, but both do not fit."
        if self.cache < longest:
            where = " next to the learner" if self.is_shared and not self.sleeps else ""
            return f"The engine{where} has no room for the KV cache of an episode of maximum length."
        return ""
