"""`Placement`: the GPUs of learner and engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

LayoutName = Literal["colocated", "separate", "mixed"]


@dataclass(slots=True, frozen=True, kw_only=True)
class Placement:
    """An assignment of GPUs to the learner and to engines.

    The learner has the first GPUs of the first node, or all GPUs of the first nodes. Each engine has consecutive GPUs.
    """

    layout: LayoutName
    nnodes: int
    gpus_per_node: int
    learner_gpus: int
    model_parallel: int = 1
    """GPUs of one copy of the learner's model: tensor * pipeline * context parallelism."""
    engine_tensor: int = 1
    engine_pipeline: int = 1

    @property
    def n_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nnodes * self.gpus_per_node

    @property
    def engine_size(self) -> int:
        """GPUs of one engine."""
        return self.engine_tensor * self.engine_pipeline

    @property
    def data_parallel(self) -> int:
        """Copies of the learner's model, each with different sequences."""
        return self.learner_gpus // self.model_parallel

    @property
    def learner_nodes(self) -> int:
        """Nodes of the learner. If there are several, it has all GPUs of each."""
        return -(-self.learner_gpus // self.gpus_per_node)

    @property
    def learner_gpus_of_nodes(self) -> list[int]:
        """GPUs of the learner on each node."""
        of_nodes = [self.learner_gpus // self.learner_nodes] * self.learner_nodes
        return of_nodes + [0] * (self.nnodes - self.learner_nodes)

    @property
    def engines_of_nodes(self) -> list[int]:
        """Engines on each node. No engine spans two nodes."""
        taken = self.learner_gpus_of_nodes if self.layout == "separate" else [0] * self.nnodes
        return [(self.gpus_per_node - gpus) // self.engine_size for gpus in taken]

    @property
    def num_engines(self) -> int:
        """Engines on all nodes."""
        return sum(self.engines_of_nodes)

    @property
    def shared_engines(self) -> int:
        """Engines on GPUs of the learner, which pause while it trains."""
        if self.layout == "separate":
            return 0
        touched = (-(-gpus // self.engine_size) for gpus in self.learner_gpus_of_nodes)
        return sum(min(pair) for pair in zip(touched, self.engines_of_nodes, strict=True))

    @property
    def idle_gpus(self) -> int:
        """GPUs that neither the learner nor an engine uses."""
        learner_only = self.learner_gpus if self.layout == "separate" else 0
        return self.n_gpus - learner_only - self.num_engines * self.engine_size

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each problem, with the numbers and a fix."""
        if self.learner_gpus > self.n_gpus:
            yield (
                f"The learner would have {self.learner_gpus} GPUs, but the run has {self.n_gpus}. Lower "
                "placement.learner_gpus, or raise placement.n_gpus."
            )
            return
        if self.learner_nodes > 1 and self.learner_gpus % self.gpus_per_node:
            yield (
                f"The learner would have {self.learner_gpus} GPUs, but a node has {self.gpus_per_node}: a learner on "
                f"several nodes needs all of their GPUs. Set placement.learner_gpus to {self.gpus_per_node} or less, "
                f"or to a multiple of {self.gpus_per_node}."
            )
            return
        if self.learner_gpus % self.model_parallel:
            yield (
                f"The learner's {self.learner_gpus} GPUs are not a multiple of tensor_parallel * pipeline_parallel * "
                f"context_parallel = {self.model_parallel}: data parallelism would be "
                f"{self.learner_gpus / self.model_parallel:.2f}. Set placement.learner_gpus to a multiple of "
                f"{self.model_parallel}, or lower these settings."
            )
        if self.engine_size > self.gpus_per_node:
            yield (
                f"An engine needs tensor_parallel_size {self.engine_tensor} * pipeline_parallel_size "
                f"{self.engine_pipeline} = {self.engine_size} GPUs on one node, but a node has {self.gpus_per_node}. "
                "Lower tensor_parallel_size in engine.options."
            )
        elif self.num_engines == 0:
            yield (
                f"The learner's {self.learner_gpus} of {self.n_gpus} GPUs leave no node with the {self.engine_size} "
                "GPUs of one engine. Lower placement.learner_gpus or tensor_parallel_size in engine.options, or raise "
                "placement.n_gpus."
            )

    def lines(self) -> dict[str, str]:
        """Return a summary for the user, as label -> text."""
        parts = f"data {self.data_parallel} * model {self.model_parallel}"
        where = {"colocated": "the same GPUs", "separate": "their own GPUs", "mixed": "all GPUs"}[self.layout]
        engines = " + ".join(str(count) for count in self.engines_of_nodes)
        return {
            "placement": f"{self.layout}: {self.n_gpus} GPUs on {self.nnodes} nodes, {self.idle_gpus} of them unused",
            "learner": f"{self.learner_gpus} GPUs of the first {_nodes(self.learner_nodes)}: {parts}",
            "engines": f"{self.num_engines} of {self.engine_size} GPUs each on {where} ({engines} by node)",
        }


def _nodes(count: int) -> str:
    return "node" if count == 1 else f"{count} nodes"
