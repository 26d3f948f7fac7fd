"""`WorkerEnv`: base class of environments whose episodes a worker plays.

A subclass names its package and the file with the class `Worker`. The answers of `Worker.start` and `Worker.step` are
objects with these fields, all optional:

    messages      new messages for the model; a string is one user message
    reward        reward of the step; if it is missing or null, the step is not scored
    terminated    whether the episode is over
    truncated     whether the environment ended it early
    metrics       name -> number, added to the metrics of the trajectory

`step` gets {"message": the turn of the model}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agentloop.envs.base import Env, Observation
from agentloop.envs.workers.interpreters import interpreter_of
from agentloop.envs.workers.pool import WorkerEpisode, check_limits, pool_of
from agentloop.envs.workers.process import Program
from agentloop.errors import EnvError, UnscoredError
from agentloop.types.messages import Message

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory


class WorkerEnv(Env):
    """Episode in a worker. Subclasses set `package` and `worker`, and pass the options of their `Worker`."""

    package: ClassVar[str]
    """Name of the environment, which `agentloop envs install` knows."""
    worker: ClassVar[Path]
    """File with the class `Worker`."""
    exclusive: ClassVar[bool] = False
    """Whether a process serves one episode at a time, because the package has global state."""

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        python: str | None = None,
        processes: int = 1,
        step_timeout: float = 60.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare an episode of `row`.

        `python` is the interpreter with the package; the default is the one of `agentloop envs install`. At most
        `processes` processes run in each rollout worker. A call that takes longer than `step_timeout` seconds fails.
        `options` are the options of the class `Worker`.
        """
        super().__init__(row, toolset=toolset, reward=reward)
        check_limits(self.package, processes=processes, step_timeout=step_timeout)
        self._program = Program(self.package, interpreter_of(self.package, python), self.worker, options or {})
        self._processes = processes
        self._seconds = step_timeout
        self._episode: WorkerEpisode | None = None
        self._is_scored = False
        self._metrics: dict[str, float] = {}

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of `Worker.start`. Default: the row without its messages."""
        return {name: value for name, value in self.task.items() if name != "messages"}

    async def reset(self) -> Observation:
        pool = pool_of(self._program, processes=self._processes, exclusive=self.exclusive)
        self._episode = await pool.start(self.arguments(), seconds=self._seconds)
        answer = self._checked(self._episode.first)
        return Observation((*self.task.get("messages", ()), *self._messages(answer)))

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        assert self._episode is not None, "reset comes first"
        answer = self._checked(await self._episode.step({"message": message}))
        reward = answer.get("reward")
        self._is_scored |= reward is not None
        ends = bool(answer.get("terminated")), bool(answer.get("truncated"))
        return Observation(self._messages(answer)), 0.0 if reward is None else reward, *ends

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward of `env.reward`, to which the loop adds the rewards of the steps.

        Raises `UnscoredError` if neither exists, because a missing reward does not count as 0.
        """
        trajectory.metrics |= self._metrics
        if self.reward_function is None and not self._is_scored:
            raise UnscoredError(
                f"{self.package} gave no reward for any step: set env.reward, or check why it ended early"
            )
        return await super().score(trajectory)

    async def close(self) -> None:
        if self._episode is not None:
            await self._episode.close()

    def _checked(self, answer: Any) -> Mapping[str, Any]:
        if not isinstance(answer, Mapping):
            raise EnvError(f"the worker of {self.package} answered with {type(answer).__name__} instead of an object")
        for name, value in (answer.get("metrics") or {}).items():
            self._metrics[name] = self._metrics.get(name, 0.0) + value
        return answer

    @staticmethod
    def _messages(answer: Mapping[str, Any]) -> Sequence[Message]:
        messages = answer.get("messages") or ()
        return ({"role": "user", "content": messages},) if isinstance(messages, str) else messages
