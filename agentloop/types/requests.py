"""`RolloutRequest`, the input of a rollout worker, and `Group`, its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentloop.types.trajectory import Trajectory

Split = Literal["train", "eval"]


@dataclass(slots=True, frozen=True, kw_only=True)
class Sampling:
    """Sampling parameters of the turns of an episode."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of most likely tokens to sample from; 0 keeps all."""
    stop_strings: tuple[str, ...] = ()
    """Strings that end a turn, in addition to those of the renderer."""
    is_trained: bool = False
    """Whether the learner trains on these turns; if so, clients of the gateway cannot change the parameters."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RolloutRequest:
    """A task to play `n` times.

    A request is plain data: each worker has the datasets and creates the environments itself.
    """

    group_id: str
    """Name of the group, unique among those in flight."""
    row: int
    """Index of the task in its dataset."""
    n: int
    seed: int
    """Seed of the group: episode k runs with seed * n + k."""
    split: Split = "train"
    sampling: Sampling | None = None
    """Sampling parameters of these episodes; None: those of the run."""
    places: tuple[int, ...] | None = None
    """Indices of the episodes to play; None: all n. After a failure only unfinished episodes are played again."""

    @property
    def played(self) -> Sequence[int]:
        """Indices of the episodes that this request plays."""
        return range(self.n) if self.places is None else self.places

    def trajectory_id(self, place: int) -> str:
        """Return the id of an episode, unique among those in flight."""
        return f"{self.group_id}-{place}"

    def seed_of(self, place: int) -> int:
        """Return the seed of an episode, unique within its group."""
        return self.seed * self.n + place

    def as_json(self) -> dict[str, Any]:
        """Return the request as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RolloutRequest:
        """Read the object that `as_json` returned, decoded from JSON."""
        sampling, places = data["sampling"], data["places"]
        if sampling is not None:
            sampling = Sampling(**sampling | {"stop_strings": tuple(sampling["stop_strings"])})
        found = {"sampling": sampling, "places": None if places is None else tuple(places)}
        return cls(**{**data, **found})


@dataclass(slots=True)
class Group:
    """The trajectories of one request, in the order of their episodes."""

    request: RolloutRequest
    trajectories: list[Trajectory] = field(default_factory=list)
