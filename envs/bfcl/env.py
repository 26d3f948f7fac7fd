"""`Bfcl`: the multi-turn tasks of BFCL with their functions as tools, and the rows of `data.train`.

data:
  train: agentloop.envs.bfcl.env:tasks
  train_options: {categories: [base, miss_func, miss_param], stop: 160}
  eval: agentloop.envs.bfcl.env:tasks
  eval_options: {start: 160}
env: {factory: bfcl}
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.envs.base import Observation
from agentloop.envs.workers.env import WorkerEnv
from agentloop.envs.workers.interpreters import interpreter_of
from agentloop.envs.workers.pool import rows_of
from agentloop.envs.workers.process import Program
from agentloop.errors import EnvError, FailureKind, UserError
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.toolset import Toolset
from agentloop.types.limits import StopReason
from agentloop.types.messages import Message

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.types.trajectory import Trajectory

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")


class FunctionArguments:
    """Unchecked arguments. The functions check them, and some published solutions do not fit the documentation."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged."""
        return dict(arguments)


class BfclFunction(Tool):
    """Function of a task."""

    timeout = float("inf")  # the worker has its own timeout

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.name = schema["name"]
        self.description = schema["description"]
        self.arguments = FunctionArguments(schema["parameters"])

    async def call(self, ctx: ToolContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]
        env: Bfcl = ctx.env
        return await env.call(self.name, arguments)


class Bfcl(WorkerEnv):
    """Task of BFCL. A turn without a call ends a user turn. The reward is 1 if all user turns are right, else 0.

    A user turn is right if the task's classes have the same state as after the published solution, and if the results
    of the solution's calls are among the results of the model's calls.
    """

    package = "bfcl"
    worker = Path(__file__).with_name("worker.py")

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        max_steps: int = 20,
        python: str | None = None,
        processes: int = 1,
        step_timeout: float = 60.0,
    ) -> None:
        """Prepare the task of a row of `tasks`. Raises `UserError` if the package is not installed.

        The episode ends after `max_steps` model turns with calls in one user turn. `WorkerEnv` explains `python`,
        `processes` and `step_timeout`.
        """
        if toolset is not None and toolset.tools:
            raise UserError("env.tools is set, but the functions of a bfcl task are its tools. Leave env.tools out.")
        super().__init__(row, reward=reward, python=python, processes=processes, step_timeout=step_timeout)
        if "category" not in row:
            raise UserError(
                f"The row {row.get('id')!r} has no category: use the rows of agentloop.envs.bfcl.env:tasks."
            )
        self._max_steps = max_steps
        self._steps = 0
        self._pending = 0
        self._in_order = asyncio.Lock()
        self._is_over = False

    async def reset(self) -> Observation:
        observation = await super().reset()
        assert self._episode is not None
        first = self._episode.first
        self.toolset = _toolset(json.dumps(first["functions"]), frozenset(first["hidden"]))
        return observation

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        self._steps = 0
        return await super().step(message)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a call of the model. If the worker fails, the episode ends."""
        self._steps += not self._pending  # calls of one turn arrive together
        self._pending += 1
        try:
            async with self._in_order:
                return await self._call(name, arguments)
        finally:
            self._pending -= 1

    async def score(self, trajectory: Trajectory) -> float:
        self._is_scored = True  # as in the package, an unfinished task is wrong
        return await super().score(trajectory)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        assert self._episode is not None
        if self._is_over:
            return ToolResult("Not run: the episode was over before this call.", is_error=True)
        try:
            answer = await self._episode.step({"call": name, "arguments": dict(arguments)})
        except EnvError as error:
            self._is_over = True
            return ToolResult(str(error), is_error=True, failure=FailureKind.ENV, stop=StopReason.ENV_ERROR)
        stop: bool | StopReason = StopReason.ENV_TRUNCATED if self._steps > self._max_steps else False
        return ToolResult(answer["content"], is_error=answer["is_error"], stop=stop)


def tasks(
    categories: str | Sequence[str] = CATEGORIES, *, start: int = 0, stop: int = 200, python: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the tasks `start` to `stop` of each category as rows. Each category has 200 tasks.

    Tasks with the same number are variants of one scenario, so hold out by number. Raises `UserError`.
    """
    names = [categories] if isinstance(categories, str) else list(categories)
    if not 0 <= start < stop:
        raise UserError(f"`start` and `stop` of the bfcl tasks must be 0 <= start < stop, got {start} and {stop}.")
    program = Program("bfcl", interpreter_of("bfcl", python), Bfcl.worker)
    yield from rows_of(program, {"categories": names, "start": start, "stop": stop})


@lru_cache(maxsize=256)
def _toolset(functions: str, hidden: frozenset[str]) -> Toolset:
    """Return the tools of a task, whose schemas lack the `hidden` ones.

    As in the package, a hidden function runs if it is called, because one of the solutions does so. The result is
    cached, because renderers identify tools by the identity of their schemas.
    """
    toolset = Toolset([BfclFunction(schema) for schema in json.loads(functions)])
    toolset.schemas = [schema for schema in toolset.schemas if schema["function"]["name"] not in hidden]
    return toolset
