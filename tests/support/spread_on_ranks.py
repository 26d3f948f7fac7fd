"""Script that each rank of test_spread_shelf.py runs: OUT. The first rank writes its findings there as JSON."""

import json
import sys
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.placement_types import Replicate, Shard
from torch.profiler import ProfilerActivity, profile

from agentloop.weights.sharded import ShardedShelf
from agentloop.weights.shelf import Overwritten

BATCH = 64 << 10
SHAPES = {
    "embedding": (700, 64),
    **{f"layer.{number}.weight": (96, 128) for number in range(12)},
    **{f"layer.{number}.uneven": (101, 7) for number in range(12)},
    "fewer rows than ranks": (2, 5),
    "vector": (64,),
    "one": (1,),
}


@contextmanager
def allocated(peaks):
    """Adds the most bytes that were allocated meanwhile at the same time, new memory of shelves included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        yield
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    peaks.append(max(accumulate(sizes)))


def values(shape, number):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape) % 251 + number


def main():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    plain = init_device_mesh("cpu", (ranks,))
    replicated = init_device_mesh("cpu", (2, ranks // 2))
    grids = [(plain, [Shard(0)]), (replicated, [Replicate(), Shard(0)])]
    shelf = ShardedShelf(batch_bytes=BATCH, bucket_bytes=BATCH)
    sizes = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
    found, kept = {"same": [], "peaks": []}, None
    for number, (mesh, placements) in enumerate([*grids, *grids]):
        whole = {name: values(shape, number) for name, shape in SHAPES.items()}
        weights = {name: distribute_tensor(weight, mesh, placements) for name, weight in whole.items()}
        with allocated(found["peaks"]):
            shared = shelf.fill(weights.items(), torch.bfloat16, sizes)
        if shared is not None:
            given = list(shared.tensors())
            found["same"].append(
                [name for name, _ in given] == list(SHAPES)
                and all(torch.equal(tensor, whole[name].bfloat16()) for name, tensor in given)
            )
            if kept is not None:
                found["parts"] = [
                    sum(p.num_bytes for p in shared.places if owner(shared, p) == r) for r in range(ranks)
                ]
                found["mapped again"] = kept.again(shared)
                kept.check()
            kept = shared.open()
            found["is of this process"] = shared.is_of_this_process
        dist.barrier()
    peaks = [None] * ranks
    dist.all_gather_object(peaks, found["peaks"])
    # One rank starts again, the others do not: concurrent readers notice it.
    if rank == ranks - 1:
        shelf.shelf.begin()
    dist.barrier()
    if rank == 0:
        try:
            kept.check()
        except Overwritten:
            found["overwritten"] = True
        found["peaks"] = peaks
        Path(sys.argv[1]).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def owner(shared, place):
    """Return the index of the part that contains a place."""
    ends = [sum(len(part.buckets) for part in shared.parts[: number + 1]) for number in range(len(shared.parts))]
    return next(number for number, end in enumerate(ends) if place.bucket < end)


if __name__ == "__main__":
    main()
