"""What a reward is: a function, or a `Reward` where it has something of its own to start and to release."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from agentloop.process.threads import run_in_threads

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

Outcome = float | Mapping[str, Any]
"""The reward; or a mapping with it under `reward`, what single turns are worth under `turn_rewards` (a number for each
sampled turn), and further numbers, which are logged."""
RawReward = Callable[..., Outcome | Awaitable[Outcome]]
F = TypeVar("F", bound=RawReward)


class Reward(ABC):
    """A reward that holds something: processes, connections, a sandbox. Made once a run with its options as keyword
    arguments, asked by all episodes at once. Methods that are not `async` run in threads."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run_in_threads(cls, ("start", "shutdown", "__call__"))

    async def start(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Make ready; again it does nothing. Raises `UserError` where it cannot work here, before any episode."""

    async def shutdown(self) -> None:  # noqa: B027
        """Release what it holds, whether or not `start` ran."""

    @abstractmethod
    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Outcome:
        """What the trajectory is worth. Whatever it raises leaves the trajectory without a reward and is counted as a
        failure of the judge: raise where the answer cannot be judged, never return 0 for it."""


def inline(function: F) -> F:
    """Mark a synchronous reward as one of microseconds: it is called on the event loop, without a thread."""
    function.runs_inline = True  # type: ignore[attr-defined]
    return function


def answer_of(task: Mapping[str, Any]) -> Any:
    """The column `answer`, which rows of verl have as `reward_model.ground_truth`. Raises `LookupError`."""
    if "answer" not in task:
        raise LookupError(f"the row has no 'answer' column, only {sorted(task)}")
    return task["answer"]
