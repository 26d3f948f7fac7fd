"""`WorkersConfig`: the processes that play the episodes of a run, and how their failures are handled."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from agentloop.registry.options import Config

_OF_ACTORS = ("count", "address", "gpus", "cpus", "weights", "show_logs")
"""Settings without effect on a worker in the process of the run."""


class WorkersConfig(Config):
    """Rollout workers, each with one engine replica and the agent loops that use it."""

    kind: Literal["local", "ray"] = "local"
    """local: one worker in the process of the run. ray: Ray actors, on this machine or on a cluster."""
    count: int = Field(default=1, ge=1)
    """Number of workers of kind ray."""
    address: str | None = None
    """Running Ray cluster: `auto` (the one that `ray start` started on this machine), or 'host:port' of its head. None
    starts Ray on this machine for the run."""
    cpus: float = Field(default=1, gt=0)
    """Number of CPU cores that Ray reserves for a worker."""
    gpus: float | None = Field(default=None, ge=0)
    """Number of GPUs per worker, or a fraction of one: 0.25 puts four engines on a GPU, or two next to the learner.
    None: tensor_parallel_size times pipeline_parallel_size for an engine that runs on GPUs, else 0."""
    start_seconds: float = Field(default=900, gt=0)
    """Seconds that a worker has to load its model; a slower worker is given up."""
    hang_seconds: float = Field(default=60, gt=0)
    """Seconds without a heartbeat after which a worker is killed and restarted."""
    stall_seconds: float | None = Field(default=None, gt=0)
    """Seconds in which no turn or episode of a busy worker ends, after which it is killed and restarted. None: one
    minute more than `limits.max_seconds`."""
    drain_seconds: float = Field(default=600, ge=0)
    """Seconds that a worker has to finish its episodes before it leaves. Other workers then take over unfinished
    episodes and replay their known turns."""
    weights: Literal["auto", "broadcast", "objects"] = "auto"
    """Transport of new weights. auto: workers on the learner's host map its memory; other hosts get a broadcast, by
    NCCL between GPUs and otherwise by gloo; workers that neither reaches use objects, Ray's object store. broadcast and
    objects apply to all workers."""
    max_restarts: int = Field(default=3, ge=0)
    """Largest number of restarts of one worker or engine per hour, for each kind of failure. A worker with more is
    given up; the run continues with the others."""
    max_replays: int = Field(default=3, ge=0)
    """Number of times that a request is repeated after its worker died. After that its open episodes count as
    failed."""
    show_logs: bool = False
    """Print all output of worker processes, not only their warnings. It is always in the log folder of Ray. If the run
    started Ray, that folder is removed when the run has ended without a failure and without losing a worker."""

    @field_validator("gpus")
    @classmethod
    def _is_whole_or_part_of_one(cls, gpus: float | None) -> float | None:
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise ValueError(
                f"a worker needs a whole number of GPUs or a fraction of one, not {gpus:g}: set it to {int(gpus)} or "
                f"{int(gpus) + 1}."
            )
        return gpus

    @model_validator(mode="after")
    def _needs_ray(self) -> Self:
        defaults = {name: type(self).model_fields[name].default for name in _OF_ACTORS}
        # No worker of kind local reserves GPUs, so 0 of them is true.
        foreign = [name for name in _OF_ACTORS if getattr(self, name) not in (defaults[name], 0)]
        if self.kind == "local" and foreign:
            raise ValueError(
                f"{', '.join(f'workers.{name}' for name in foreign)} would have no effect, because only workers in "
                "other processes have such settings: remove that, or set workers.kind=ray too."
            )
        return self
