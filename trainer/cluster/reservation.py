"""Reserve GPUs on the learner's nodes in a placement group of Ray."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from agentloop.errors import UserError
from agentloop.trainer.cluster.session import Node, nodes, of_learner, require_ray

_SECONDS = 120.0
"""Seconds to wait until Ray has reserved the GPUs."""
_NEXT_TO_NOTHING = {"memory": 1.0}
"""Resources of a bundle without GPUs: Ray does not allow empty bundles, and every node has one byte."""

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(slots=True, frozen=True)
class GpuReservation:
    """A placement group with one bundle for each of the learner's nodes.

    Each bundle reserves `num_gpus` GPUs, which no rollout worker gets. If rank 0 runs in this process, it has the first
    GPU of the first bundle; the actor of each other rank takes one of the others.

    If `num_gpus` is 0, a bundle only pins actors to its node, and Ray reserves no GPUs for the learner, which then
    shares GPUs with workers or is their only user.
    """

    nodes: tuple[Node, ...]
    """Nodes of the learner, this node first."""
    num_gpus: int
    """Number of reserved GPUs per node."""
    group: Any
    holder: Any
    """Actor that holds the GPU of rank 0; None without GPUs, or if rank 0 is an actor."""
    first_gpu: str | None
    """GPU of rank 0, as in CUDA_VISIBLE_DEVICES."""
    _seen_before: list[str | None] = field(default_factory=list, compare=False)
    """CUDA_VISIBLE_DEVICES before `show_first_gpu` changed it."""

    @classmethod
    def take(cls, num_nodes: int, *, num_gpus: int = 0, at_least: int = 0, in_process: bool = True) -> GpuReservation:
        """Reserve `num_gpus` GPUs on each of the learner's nodes, which need at least `at_least` GPUs.

        `in_process` says whether rank 0 runs in this process. Raises `UserError` if too few nodes have these GPUs, or
        if other programs use them.
        """
        ray = require_ray()
        chosen = of_learner(nodes(), num_nodes, max(num_gpus, at_least))
        group = ray.util.placement_group(
            [{"GPU": float(num_gpus)} if num_gpus else _NEXT_TO_NOTHING] * num_nodes,
            strategy="PACK",
            bundle_label_selector=[{"ray.io/node-id": node.node_id} for node in chosen],
        )
        if not group.wait(_SECONDS):
            ray.util.remove_placement_group(group)
            names = ", ".join(node.name for node in chosen)
            raise UserError(
                f"The learner needs {num_gpus} GPUs on each of the nodes {names}, but Ray could not reserve them "
                f"within {_SECONDS:g} s, because they are in use. Wait for them (`ray status`), or lower learner.ranks."
            )
        if not num_gpus or not in_process:
            return cls(tuple(chosen), num_gpus, group, None, None)
        holder = ray.remote(_Holder).options(**_options(group, 0, num_gpus=1)).remote()
        return cls(tuple(chosen), num_gpus, group, holder, ray.get(holder.gpu.remote(), timeout=_SECONDS))

    def show_first_gpu(self) -> None:
        """Hide all GPUs but rank 0's from this process, unless the learner shares GPUs. Call it before using CUDA."""
        if self.first_gpu is not None:
            self._seen_before.append(os.environ.get(_VISIBLE))
            os.environ[_VISIBLE] = self.first_gpu

    def actor_options(self, node: int) -> dict[str, Any]:
        """Return Ray options for the actor of a rank on the node with this index."""
        return _options(self.group, node, num_gpus=1 if self.num_gpus else 0)

    def release(self) -> None:
        """Return the GPUs to Ray, which ends all actors that use them, and restore the environment."""
        while self._seen_before:
            before = self._seen_before.pop()
            os.environ.pop(_VISIBLE, None)
            if before is not None:
                os.environ[_VISIBLE] = before
        require_ray().util.remove_placement_group(self.group)


class _Holder:
    """An actor that only holds a GPU."""

    def gpu(self) -> str:
        return str(require_ray().get_gpu_ids()[0])


def _options(group: Any, bundle: int, *, num_gpus: int) -> dict[str, Any]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return {"num_cpus": 0, "num_gpus": num_gpus, "scheduling_strategy": place}
