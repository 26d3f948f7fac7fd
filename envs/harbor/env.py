"""`HarborEnv`: tasks of Harbor folders as episodes, and the rows of `data.train`.

data:
  train: agentloop.envs.harbor.env:tasks
  train_options: {folder: ./tasks}
env:
  factory: harbor
  options: {provider: rootfs}
  tools: [bash, edit]
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentloop.envs.base import Env, Observation
from agentloop.envs.harbor.attempt import Attempt, BoxOptions, EarlyAttempt
from agentloop.envs.harbor.check import check_images
from agentloop.envs.harbor.tasks.task import HarborTask
from agentloop.errors import UserError
from agentloop.types.messages import Message

if TYPE_CHECKING:
    from agentloop.boxes.interface.box import Box
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory


class HarborEnv(Env):
    """Task of a Harbor folder, in a separate box, judged by its tests.

    A turn without a call ends the current step of the task. The reward is the number that the tests write as `reward`;
    other numbers become metrics. An `env.reward` is added.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        provider: str | None = None,
        provider_options: Mapping[str, Any] | None = None,
        images: Mapping[str, str] | None = None,
        network: Literal["none", "public"] | None = None,
        system: str | None = None,
        carried: Sequence[str] = (),
    ) -> None:
        """Prepare the task of a row of `tasks`.

        `provider` starts the boxes, by default docker if an engine answers, else rootfs. `images` replaces images of
        tasks, by name or all ("*"), by other names, tar archives or directories. `network` replaces the tasks' network
        access. `system` is a system message. With `carried`, tests run in new boxes that get these paths only.
        """
        super().__init__(row, toolset=toolset, reward=reward)
        check_row(row)
        options = BoxOptions(
            provider=provider,
            provider_options=provider_options,
            images=images,
            network=network,
            carried=carried,
        )
        self._system = system
        self._early = EarlyAttempt(options, self.task)
        self._attempt: Attempt | None = None
        self.deadline = math.inf

    @classmethod
    def check_rows(cls, rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        check_images_of_rows(rows, options.get("images"))

    @property
    def box(self) -> Box | None:
        """The box that tools work in."""
        return None if self._attempt is None else self._attempt.box

    @property
    def agent_user(self) -> str | None:
        """User of the tools; None means the image's."""
        return None if self._attempt is None else self._attempt.agent_user

    def prepare(self) -> None:
        self._early.begin()

    async def reset(self) -> Observation:
        self._attempt = await self._early.get()
        system: list[Message] = [] if self._system is None else [{"role": "system", "content": self._system}]
        return Observation([*system, self._instruction(self._attempt)])

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        assert self._attempt is not None, "reset comes first"
        if not self._attempt.task.has_steps:
            return Observation(), 0.0, True, False
        await self._attempt.judge()
        if not await self._attempt.advance():
            return Observation(), 0.0, True, False
        return Observation([self._instruction(self._attempt)]), 0.0, False, False

    def _instruction(self, attempt: Attempt) -> Message:
        seconds = attempt.step.agent_timeout
        self.deadline = math.inf if seconds is None else time.monotonic() + seconds
        return {"role": "user", "content": attempt.step.instruction}

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward of the tests, including those of the current step. Raises `EnvError` if there is none."""
        assert self._attempt is not None, "reset comes first"
        trajectory.metrics["env/seconds_waiting_for_box"] = self._early.seconds_waiting
        return await self._attempt.reward(trajectory.metrics) + await super().score(trajectory)

    async def close(self) -> None:
        await self._early.stop()


def check_row(row: Mapping[str, Any]) -> None:
    """Raise `UserError` unless a row is one of `tasks`."""
    if "task" not in row:
        raise UserError(f"The row {row.get('id')!r} has no task: use the rows of agentloop.envs.harbor.env:tasks.")


def check_images_of_rows(rows: Sequence[Mapping[str, Any]], images: Mapping[str, str] | None) -> None:
    """Raise `UserError` for an image to replace that the task of no row has."""
    check_images([Path(row["task"]) for row in rows if "task" in row], images or {})


def tasks(folder: str | Sequence[str], *, first: int = 0, count: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row for each task of folders, in the order of their names.

    A folder is a task, or has tasks anywhere below it. `first` and `count` select some, so that one folder can serve
    training and evaluation. Raises `UserError` for a task that cannot be read, or a folder without tasks.
    """
    folders = [folder] if isinstance(folder, str) else list(folder)
    found = [task for each in folders for task in folders_of_tasks(Path(each).expanduser())]
    for path in found[first : None if count is None else first + count]:
        task = HarborTask.load(path)
        yield {"id": task.name, "task": str(task.folder)}


def folders_of_tasks(folder: Path) -> list[Path]:
    """Return a folder that is a task, or the tasks below it. Raises `UserError` if there are none."""
    if (folder / "task.toml").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.rglob("task.toml"))
    if not found:
        raise UserError(f"{folder} has no Harbor tasks: no folder below it has a task.toml.")
    return found
