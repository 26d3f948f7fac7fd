"""`Reward`: base class of rewards that hold resources. Other rewards are plain functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from agentloop.process.threads import REWARDS, run_in_threads

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

Outcome = float | Mapping[str, Any]
"""The reward, or a mapping with `reward`, optionally `turn_rewards` (a number per sampled turn), and numbers to log."""
OF_THE_RUN = frozenset({"mean", "std", "equal_groups"})
"""Names below `reward/` that a run itself logs, so no part of a reward may have them."""
RawReward = Callable[..., Outcome | Awaitable[Outcome]]
F = TypeVar("F", bound=RawReward)


class Reward(ABC):
    """Reward that holds resources such as processes, connections or a sandbox.

    A run creates it once, with its options as keyword arguments, and all episodes share it. Methods that are not
    `async` run in threads.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run_in_threads(cls, ("start", "shutdown", "__call__"), REWARDS)

    async def start(self) -> None:  # noqa: B027 - most rewards prepare nothing
        """Prepare before any episode. A second call does nothing. Raises `UserError` if the reward cannot work here."""

    async def shutdown(self) -> None:  # noqa: B027
        """Release the resources, within 60 seconds. Runs even if `start` did not."""

    @abstractmethod
    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Outcome:
        """Return the reward of a trajectory.

        If the answer cannot be judged, raise an error instead of returning 0. Any error leaves the trajectory without a
        reward and counts as a failure of the judge.
        """


def inline(function: F) -> F:
    """Mark a synchronous reward that takes microseconds, so that it runs on the event loop without a thread."""
    function.runs_inline = True  # type: ignore[attr-defined]
    return function


def answer_of(task: Mapping[str, Any]) -> Any:
    """Return the column `answer` (`reward_model.ground_truth` in rows of verl). Raises `LookupError`."""
    if "answer" not in task:
        raise LookupError(f"the row has no 'answer' column, only {sorted(task)}")
    return task["answer"]
