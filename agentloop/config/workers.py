"""`WorkersConfig`: where the episodes of a run are played, and what happens when that fails."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from agentloop.registry.options import Config


class WorkersConfig(Config):
    """Rollout workers: each has one engine replica and the agent loops that use it."""

    kind: Literal["local", "ray"] = "local"
    """local: one worker in the process of the run. ray: processes of their own, on this machine or on a cluster."""
    count: int = Field(default=1, ge=1)
    """Workers of the kind ray."""
    address: str | None = None
    """Of a running Ray cluster: `auto` (the one that `ray start` began here), or 'host:port' of its head. None starts
    Ray on this machine for the time of the run."""
    cpus: float = Field(default=1, gt=0)
    """CPU cores that Ray reserves for a worker."""
    gpus: float | None = Field(default=None, ge=0)
    """GPUs of a worker, or its part of one: 0.25 puts four engines on a card, or two beside the learner. None: what its
    engine is spread over (`tensor_parallel_size` times `pipeline_parallel_size`) where the engine runs on GPUs, else
    0."""
    start_seconds: float = Field(default=900, gt=0)
    """A worker that has not loaded its model within is given up."""
    hang_seconds: float = Field(default=60, gt=0)
    """A worker that says nothing for so long is killed and started anew."""
    stall_seconds: float | None = Field(default=None, gt=0)
    """A worker in which no turn and no episode ends for so long, although episodes run, is killed and started anew.
    None: as long as an episode may take (`limits.max_seconds`), and a minute."""
    drain_seconds: float = Field(default=600, ge=0)
    """Time for a worker that is to leave to end its episodes. Other workers play the rest again and replay its known
    turns."""
    weights: Literal["auto", "broadcast", "objects"] = "auto"
    """How new weights reach workers. auto: those of the learner's host map its memory; those of other hosts get them by
    broadcast, from GPU to GPU by NCCL, else by gloo; objects, Ray's object store, are for those that nothing else
    reaches. The other two are for all workers."""
    max_restarts: int = Field(default=3, ge=0)
    """Of one worker or engine within an hour, for each kind of failure. A worker beyond it is given up; the run goes on
    with the others."""
    max_replays: int = Field(default=3, ge=0)
    """How often an order is given again whose worker died. After that what is left of it counts as failed."""
    show_logs: bool = False
    """Print what the processes of the workers print. It is in Ray's log folder in any case."""

    @field_validator("gpus")
    @classmethod
    def _is_whole_or_part_of_one(cls, gpus: float | None) -> float | None:
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise ValueError(f"a worker has whole GPUs or a part of one, not {gpus:g}")
        return gpus

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        if self.kind == "local" and (self.count > 1 or self.address is not None or self.gpus):
            raise ValueError(
                "workers.count, workers.address and workers.gpus are of workers in processes of their own: set "
                "workers.kind=ray too"
            )
        return self
