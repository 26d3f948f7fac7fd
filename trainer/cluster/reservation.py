"""GPUs that are kept from the workers, for a learner that Ray does not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentloop.trainer.cluster.learner_host import Seat
from agentloop.trainer.cluster.session import nodes, of_learner, require_ray

_SECONDS = 120.0


class Keeper:
    """An actor that does nothing but hold GPUs."""

    def gpus(self) -> list[str]:
        return [str(gpu) for gpu in require_ray().get_gpu_ids()]


@dataclass(slots=True, frozen=True)
class Seats:
    """No worker gets these GPUs until they are given up."""

    of_nodes: tuple[Seat, ...]
    """This node first."""
    keepers: tuple[Any, ...]

    def give_up(self) -> None:
        for keeper in self.keepers:
            require_ray().kill(keeper)


def take_seats(num_gpus: int, num_nodes: int = 1) -> Seats:
    """`num_gpus` of each of the learner's nodes. Raises `UserError` where there are fewer nodes that have them."""
    ray = require_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    keepers = []
    chosen = of_learner(nodes(), num_nodes, num_gpus)
    for node in chosen:
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        keepers.append(ray.remote(Keeper).options(num_cpus=0, num_gpus=num_gpus, scheduling_strategy=there).remote())
    gpus = ray.get([keeper.gpus.remote() for keeper in keepers], timeout=_SECONDS)
    seats = (Seat(node.node_id, tuple(found)) for node, found in zip(chosen, gpus, strict=True))
    return Seats(tuple(seats), tuple(keepers))
