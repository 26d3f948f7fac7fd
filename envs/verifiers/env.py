"""`Verifiers`: environments written for verifiers, and the rows of `data.train`.

data:
  train: agentloop.envs.verifiers.env:tasks
  train_options: {id: gsm8k-v1, config: {agent: {harness: {id: "null"}}}}
env: {factory: verifiers}

The package's own rollout runs in a worker and calls the model through the gateway, like other agent programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentloop.envs.agent.interface.endpoint import AgentResult, Endpoint
from agentloop.envs.agent.program import AgentProgram, SampledBy
from agentloop.envs.workers.interpreters import interpreter_of
from agentloop.envs.workers.pool import check_limits, pool_of, rows_of
from agentloop.envs.workers.process import Program
from agentloop.errors import UserError

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory

Api = Literal["v1", "v0"]

_APIS = {"v1": ("verifiers", "worker.py"), "v0": ("verifiers_v0", "worker_v0.py")}
"""API -> the package that `agentloop envs install` knows, and the worker."""


class Verifiers(AgentProgram):
    """Rollout of an environment of verifiers, rewarded by its own rubric. An `env.reward` is added.

    If the package reports a failed rollout, the episode fails.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        processes: int = 1,
        step_timeout: float = 60.0,
        sampling: SampledBy = "run",
    ) -> None:
        """Prepare the rollout of a row of `tasks`. Raises `UserError` for other rows.

        At most `processes` processes run in each rollout worker. Start and end of a rollout may take `step_timeout`
        seconds each, after which the process is killed; `limits.max_seconds` limits the rollout itself. `sampling`
        selects temperature and top_p: those of the run ("run") or of the environment ("client").
        """
        super().__init__(row, toolset=toolset, reward=reward, agent=self._rollout, sampling=sampling)
        check_limits("verifiers", processes=processes, step_timeout=step_timeout)
        if "environment" not in row:
            raise UserError(
                f"The row {row.get('id')!r} has no environment: use the rows of agentloop.envs.verifiers.env:tasks."
            )
        self._program = program(**row["environment"])
        self._processes = processes
        self._seconds = step_timeout
        self._metrics: Mapping[str, float | None] = {}

    async def _rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> AgentResult:
        pool = pool_of(self._program, processes=self._processes)
        async with pool.episode({"data": task["data"]}, seconds=self._seconds) as rollout:
            address = {"base_url": endpoint.base_url, "api_key": endpoint.api_key, "model": endpoint.model}
            found = await rollout.step(address, bounded=False)
        self._metrics = found["metrics"]
        return AgentResult(reward=found["reward"])

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward of the rubric. Raises `LookupError` if there is neither that nor an `env.reward`."""
        for name, value in self._metrics.items():
            if value is not None:
                trajectory.metrics[f"reward/verifiers/{name}"] = value
        return await super().score(trajectory)


def tasks(
    id: str,
    *,
    api: Api = "v1",
    config: Mapping[str, Any] | None = None,
    seat: str | None = None,
    split: Literal["train", "eval"] = "train",
    size: int | None = None,
    python: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the tasks of an environment as rows, the first `size` of them. Raises `UserError`.

    `id` is the name of the environment's package, or the path of a Python file. With `api` "v1", `config` is the
    configuration of the environment ({taskset: {...}, agent: {harness: {...}, runtime: {...}}}), and `seat` names the
    agent to train if there are several. With "v0", `config` has the arguments of `load_environment`, and `split`
    selects the dataset. The package runs in `python`, by default the interpreter of `agentloop envs install verifiers`
    (or `verifiers_v0`).
    """
    if api not in _APIS:
        raise UserError(f"`api` of the verifiers tasks is 'v1' or 'v0', not {api!r}.")
    if api != "v0" and split != "train":
        raise UserError(
            f"`split` of the verifiers tasks is {split!r}, but environments of the API v1 select their tasks in "
            "`config`, as in {taskset: {split: eval}}: remove split, or set api to v0."
        )
    if size is not None and size < 1:
        raise UserError(f"`size` of the verifiers tasks must be at least 1, got {size}.")
    environment: dict[str, Any] = {
        "id": _absolute(id),
        "api": api,
        "config": dict(config or {}),
        "seat": seat,
        "python": python,
    }
    for row in rows_of(program(**environment), {"split": split, "size": size}):
        yield {**row, "environment": environment}


def program(id: str, api: Api, config: Mapping[str, Any], seat: str | None, python: str | None) -> Program:
    """Return the worker of an environment. Raises `UserError` if the package is not installed."""
    package, file = _APIS[api]
    options = {"id": id, "config": config, "seat": seat}
    return Program(package, interpreter_of(package, python), Path(__file__).with_name(file), options)


def _absolute(id: str) -> str:
    if not id.endswith(".py"):
        return id
    file = Path(id).absolute()
    if not file.is_file():
        raise UserError(f"There is no file {file} for the verifiers environment. Correct its `id`.")
    return str(file)
