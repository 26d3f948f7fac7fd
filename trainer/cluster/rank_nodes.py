"""Which nodes of a Ray cluster the ranks of a learner are on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.cluster.learner_host import Seat
from agentloop.trainer.cluster.session import Node, join_cluster, nodes, of_learner


def num_nodes(config: LearnerConfig, device: str) -> int:
    """That the ranks are spread over: what `learner.nodes` says, else as few as have devices for them. Raises
    `UserError` where they cannot be spread evenly."""
    here = torch.cuda.device_count() if device == "cuda" else config.ranks
    count = config.nodes or -(-config.ranks // max(here, 1))
    if config.ranks % count:
        raise UserError(
            f"learner.ranks is {config.ranks} on {count} nodes: each must have as many as the others. Set "
            f"learner.ranks to a multiple of {count}, or learner.nodes."
        )
    return count


def choose(count: int, ranks: int, device: str, seats: Sequence[Seat]) -> list[tuple[Node, tuple[str, ...] | None]]:
    """`count` nodes with room for `ranks` each, this one first, and the GPUs of each that are kept for them; None: all.

    Connects to the Ray cluster that is running here, where that was not done. Raises `UserError`.
    """
    join_cluster(
        f"The learner has {count * ranks} ranks, {ranks} on each node, and needs {count} nodes of a Ray cluster"
    )
    found = {node.node_id: node for node in nodes()}
    if seats:
        if any(seat.node_id not in found for seat in seats):
            raise UserError("A node whose GPUs were kept for the learner is gone. Start the run again.")
        return [(found[seat.node_id], seat.gpus) for seat in seats]
    return [(node, None) for node in of_learner([*found.values()], count, ranks if device == "cuda" else 0)]
