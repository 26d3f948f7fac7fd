"""`NemoGym`: items of NeMo Gym, played on their resources servers, and the rows of `data.train`.

data:
  train: agentloop.envs.nemo_gym.env:tasks
  train_options: {server: workplace_assistant, file: train.jsonl}
env: {factory: nemo_gym}

The items are requests of OpenAI's Responses API, and the servers judge its responses. So the episode is an agent
program: it calls the model through the gateway, and otherwise acts like the package's agents.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.envs.agent.interface.endpoint import AgentResult, Endpoint
from agentloop.envs.agent.program import AgentProgram, SampledBy
from agentloop.envs.datasets.files import JSONL_SUFFIXES, file_rows
from agentloop.envs.nemo_gym.session import Session
from agentloop.envs.workers.interpreters import interpreter_of
from agentloop.envs.workers.pool import WorkerEpisode, check_limits, pool_of, rows_of
from agentloop.envs.workers.process import Program
from agentloop.errors import EnvError, UserError

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory

_NAME = "nemo_gym"
_SENT = ("instructions", "tools", "tool_choice", "max_output_tokens", "temperature", "top_p", "text")
"""Fields of an item's request that the model gets."""


class NemoGym(AgentProgram):
    """Item of NeMo Gym, rewarded by its server. An `env.reward` is added."""

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        max_steps: int | None = None,
        processes: int = 1,
        step_timeout: float = 60.0,
        sampling: SampledBy = "run",
    ) -> None:
        """Prepare an item of a row of `tasks`. Raises `UserError` for other rows.

        The episode is judged after at most `max_steps` model turns. It fails if an answer of the server takes longer
        than `step_timeout` seconds. At most `processes` processes for each server run in each rollout worker.
        `sampling` selects temperature and top_p: those of the run ("run") or of the item ("client").
        """
        super().__init__(row, toolset=toolset, reward=reward, agent=self._play, sampling=sampling)
        check_limits("nemo_gym", processes=processes, step_timeout=step_timeout)
        if "environment" not in row or "item" not in row:
            raise UserError(
                f"The row {row.get('id')!r} is not an item of NeMo Gym: use those of agentloop.envs.nemo_gym.env:tasks."
            )
        if max_steps is not None and max_steps < 1:
            raise UserError(f"`max_steps` of nemo_gym must be at least 1, got {max_steps}.")
        self._max_steps = max_steps
        self._processes = processes
        self._seconds = step_timeout
        self._worker: WorkerEpisode | None = None
        self._server: Session | None = None
        self._paths: frozenset[str] = frozenset()
        self._num_turns = 0
        self._rewards: list[float] = []
        self._response: dict[str, Any] = {}
        self._items: list[dict[str, Any]] = []
        """All items that follow the prompt."""

    async def _play(self, task: Mapping[str, Any], endpoint: Endpoint) -> None:
        self._server = Session(await self._address(), seconds=self._seconds)
        self._paths = await self._server.paths()
        model = Session(endpoint.base_url, seconds=None, key=endpoint.api_key)
        try:
            if "/step" in self._paths:
                await self._play_steps(self._server, model)
            else:
                await self._play_tools(self._server, model)
        finally:
            await model.close()

    async def _address(self) -> str:
        environment = self.task["environment"]
        if "url" in environment:
            return str(environment["url"])
        pool = pool_of(program(**environment), processes=self._processes)
        self._worker = await pool.start({}, seconds=self._seconds)
        return str(self._worker.first)

    async def _play_tools(self, server: Session, model: Session) -> None:
        """Run the calls of the model on a tool server, until a turn has none."""
        seeded = await server.ask("/seed_session", self.task["item"])
        tools = {tool.get("name") for tool in self.task["item"]["responses_create_params"].get("tools") or ()}
        if seeded.get("mcp") and not tools:
            raise UserError(f"The server {server.url} offers its tools only over MCP, which nemo_gym does not support.")
        while not self._is_last_done():
            output = await self._turn(model)
            calls = [item for item in output if item["type"] == "function_call"]
            if not calls or self._response.get("incomplete_details"):
                return
            for call in calls:
                said = await self._called(server, call) if call["name"] in tools else _error("there is no such tool")
                self._items.append({"type": "function_call_output", "call_id": call["call_id"], "output": said})

    async def _play_steps(self, server: Session, model: Session) -> None:
        """Give the turns of the model to a gymnasium server, until it ends the episode."""
        item = self.task["item"]
        prompt = (await server.ask("/reset", item)).get("observation")
        before = [{"role": "user", "content": prompt}] if prompt else []
        while not self._is_last_done():
            await self._turn(model, before)
            answer = await server.ask("/step", {**item, "response": self._response})
            if answer.get("reward") is not None:
                self._rewards.append(_number(answer["reward"]))
            if answer.get("terminated") or answer.get("truncated"):
                return
            for said in (answer.get("info") or {}).get("tool_outputs") or ():
                self._items.append({"type": "function_call_output", **said})
            if observation := answer.get("observation"):
                self._items.append({"role": "user", "content": observation})

    def _is_last_done(self) -> bool:
        self._num_turns += 1
        return self._max_steps is not None and self._num_turns > self._max_steps

    async def _turn(self, model: Session, before: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Let the model answer. Return its items."""
        request = self.task["item"]["responses_create_params"]
        given = request["input"]
        prompt = [{"role": "user", "content": given}] if isinstance(given, str) else given
        fields = {name: request[name] for name in _SENT if request.get(name) is not None}
        items = [*prompt, *(before or ()), *self._items]
        self._response = await model.ask("/responses", {"model": "policy", "store": False, **fields, "input": items})
        output: list[dict[str, Any]] = self._response["output"]
        self._items += output
        return output

    async def _called(self, server: Session, call: Mapping[str, Any]) -> str:
        try:
            arguments = json.loads(call["arguments"])
        except ValueError as error:
            return _error(f"Invalid tool call arguments: {error!r}")
        return await server.text(f"/{call['name']}", arguments)

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward of the server: from `/verify`, or the sum of the rewards of `/step`.

        Raises `EnvError` if the server fails, and `LookupError` if there is no reward.
        """
        assert self._server is not None
        if "/step" in self._paths:
            reward = sum(self._rewards) if self._rewards else None
        else:
            given = {**self.task["item"], "response": {**self._response, "output": self._items}}
            found = await self._server.ask("/verify", given)
            if found.get("mask_sample"):
                raise EnvError(f"the server excluded this episode: {found.get('failure_reason')}")
            reward = None if found.get("reward") is None else _number(found["reward"])
            for name in found.keys() - given.keys() - {"reward"}:
                if isinstance(found[name], bool | int | float):
                    trajectory.metrics[f"reward/nemo_gym/{name}"] = float(found[name])
        self._result = AgentResult(reward=reward)
        return await super().score(trajectory)

    async def close(self) -> None:
        try:
            if self._server is not None:
                for path in {"/close_session", "/close"} & self._paths:
                    with suppress(EnvError):  # a server that is gone has no session to close
                        await self._server.text(path, {})
                await self._server.close()
        finally:
            if self._worker is not None:
                await self._worker.close()


def tasks(
    file: str | None = None,
    *,
    server: str | None = None,
    url: str | None = None,
    config: Mapping[str, Any] | None = None,
    size: int | None = None,
    python: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the items of a file of JSON lines as rows, the first `size` of them. Raises `UserError`.

    Their server runs at `url`, or is started by its name `server` with the fields of `config`. With `server`, `file`
    may also be the name of a file in the server's folder `data`; the default is example.jsonl. The package runs in
    `python`, by default the interpreter of `agentloop envs install nemo_gym`.
    """
    if (server is None) == (url is None):
        raise UserError("No server judges the items: set either `server` (a name) or `url` in train_options.")
    if url is not None and (file is None or config is not None):
        raise UserError(
            "With `url`, set `file` of the nemo_gym tasks and no `config`, because the server already has its own."
        )
    if size is not None and size < 1:
        raise UserError(f"`size` of the nemo_gym tasks must be at least 1, got {size}.")
    environment: dict[str, Any] = {"url": url}
    if server is not None:
        environment = {"server": server, "config": dict(config or {}), "python": python}
    if file is not None and (url is not None or Path(file).is_file()):
        items: Iterator[dict[str, Any]] = _items_of(Path(file), size)
    else:
        items = rows_of(program(**environment), {"name": file or "example.jsonl", "size": size})
    for index, item in enumerate(items):
        if not isinstance(item.get("responses_create_params"), Mapping):
            raise UserError(f"Item {index} of {file or server} has no responses_create_params.")
        yield {"id": str(item.get("id", f"{server or file}-{index}")), "item": item, "environment": environment}


def program(server: str, config: Mapping[str, Any], python: str | None) -> Program:
    """Return the worker of a server. Raises `UserError` if the package is not installed."""
    options = {"server": server, "config": config}
    return Program(_NAME, interpreter_of(_NAME, python), Path(__file__).with_name("worker.py"), options)


def _items_of(file: Path, size: int | None) -> Iterator[dict[str, Any]]:
    if not file.name.endswith(JSONL_SUFFIXES) or not file.is_file():
        raise UserError(f"The items of NeMo Gym are in files of JSON lines, but {file} is not one: correct `file`.")
    for where, item in islice(file_rows(file), size):
        if not isinstance(item, dict):
            raise UserError(f"{where} is not an item of NeMo Gym: each line must be a JSON object.")
        yield item


def _number(value: Any) -> float:
    if not isinstance(value, bool | int | float) or not math.isfinite(value):
        raise EnvError(f"the server gave the reward {value!r}, which is not a finite number")
    return float(value)


def _error(text: str) -> str:
    return json.dumps({"error": text})
