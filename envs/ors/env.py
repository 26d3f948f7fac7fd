"""`OpenReward`: environments on servers of the Open Reward Standard, and the rows of `data.train`.

data:
  train: agentloop.envs.ors.env:tasks
  train_options: {url: "http://127.0.0.1:8080", split: train}
env: {factory: ors}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import quote

import httpx

from agentloop.envs.acting import Act, ActingEnv, Move, with_act
from agentloop.envs.base import Observation
from agentloop.envs.ors.session import Refused, Session
from agentloop.errors import UnscoredError, UserError, nearest
from agentloop.tools.base import ToolContext, ToolResult
from agentloop.tools.mcp.content import as_content
from agentloop.tools.schema import SchemaArguments
from agentloop.types.messages import Content, Message

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory

Outcome = Literal["sum", "last"]

_PAGE = 500
_SECONDS = 60.0


class OpenReward(ActingEnv):
    """Session of a task. The model calls the tools of the environment; a turn without a call ends the episode."""

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        outcome: Outcome = "sum",
        secrets: Mapping[str, str] | None = None,
        step_timeout: float = 60.0,
        max_invalid_actions: int = 3,
    ) -> None:
        """Prepare the task of a row of `tasks`. Raises `UserError` for other rows.

        The reward of the episode is the "sum" or the "last" of the rewards of its calls (`outcome`). `secrets` are sent
        to the environment. The episode fails if an answer of the server takes longer than `step_timeout` seconds.
        """
        super().__init__(row, toolset=toolset, reward=reward, max_invalid_actions=max_invalid_actions)
        if "environment" not in row or "task_spec" not in row:
            raise UserError(
                f"The row {row.get('id')!r} is not a task of a server: use the rows of agentloop.envs.ors.env:tasks."
            )
        if outcome not in get_args(Outcome):
            raise UserError(f"`outcome` of ors is 'sum' or 'last', not {outcome!r}.")
        self._outcome = outcome
        self._last: float | None = None
        self._secrets = secrets
        self._session = Session(row["environment"]["url"], row["environment"]["name"], seconds=step_timeout)

    async def begin(self) -> Content:
        await self._session.create(self.task["task_spec"], self._secrets)
        tools = json.dumps(await self._session.tools(), sort_keys=True)
        self.toolset = with_act(self.toolset, *_acts(tools))
        return as_content(await self._session.prompt())

    async def move(self, arguments: dict[str, Any]) -> Move:
        try:
            output = await self._session.call(arguments["name"], arguments["input"])
        except Refused as error:
            return Move(str(error), None, is_error=True)
        reward = output.reward
        if reward is not None and self._outcome == "last":
            self._last, reward = reward, 0.0
        return Move(as_content(output.blocks), reward, terminated=output.finished)

    def read(self, text: str) -> dict[str, Any]:
        raise NotImplementedError  # every move is a call

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        return Observation(), 0.0, True, False

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward of `env.reward`, plus the last reward of the calls if that is the outcome.

        Raises `UnscoredError` if neither exists, because a missing reward does not count as 0.
        """
        if self.reward_function is None and not self._is_scored:
            raise UnscoredError("no call of the episode was rewarded: set env.reward, or check why it ended early")
        return (self._last or 0.0) + await super().score(trajectory)

    async def close(self) -> None:
        await self._session.close()


class Call(Act):
    """Tool of the environment. Calling it is a move."""

    def __init__(self, listed: Mapping[str, Any]) -> None:
        self.name = str(listed["name"])
        arguments = SchemaArguments(listed.get("input_schema") or {}, what=f"the tool {self.name!r}")
        super().__init__(arguments, str(listed.get("description") or ""))

    async def call(self, ctx: ToolContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]
        env: ActingEnv = ctx.env
        return await env.act({"name": self.name, "input": arguments})


@lru_cache(maxsize=256)
def _acts(tools: str) -> tuple[Call, ...]:
    """Return the tools of a listing. Equal listings give the same objects."""
    return tuple(map(Call, json.loads(tools)))


def tasks(
    url: str, *, environment: str | None = None, split: str = "train", first: int = 0, size: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield `size` tasks of a split as rows, from number `first` on. Raises `UserError`.

    `environment` is required if the server has several.
    """
    url = url.rstrip("/")
    if first < 0 or (size is not None and size < 1):
        raise UserError(f"`first` of the ors tasks must be at least 0 and `size` at least 1, got {first} and {size}.")
    with httpx.Client(base_url=url, timeout=_SECONDS, trust_env=False) as client:
        name = _environment(_asked(client, "GET", "/list_environments"), environment)
        path = f"/{quote(name, safe='')}"
        splits = [str(each["name"]) for each in _asked(client, "GET", f"{path}/splits")]
        if split not in splits:
            raise UserError(f"{name} has no split {split!r}.{nearest(split, splits)} It has {', '.join(splits)}.")
        count = int(_asked(client, "POST", f"{path}/num_tasks", {"split": split})["num_tasks"])
        end = count if size is None else min(first + size, count)
        for start in range(first, end, _PAGE):
            page = {"split": split, "start": start, "stop": min(start + _PAGE, end)}
            for number, task in enumerate(_asked(client, "POST", f"{path}/task_range", page)["tasks"], start):
                yield {
                    "id": f"{name}-{split}-{number}",
                    "task_spec": task,
                    "environment": {"url": url, "name": name},
                }


def _environment(known: Any, wanted: str | None) -> str:
    names = [str(name) for name in known]
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None or wanted.lower() not in names:
        close = nearest(wanted, names) if wanted else ""
        raise UserError(f"Set `environment` in train_options to one of {', '.join(names)}.{close}")
    return wanted.lower()


def _asked(client: httpx.Client, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    try:
        response = client.request(method, path, json=body)
        response.raise_for_status()
        return response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise UserError(
            f"The server {client.base_url} did not answer {path} according to the Open Reward Standard: {error}. "
            "Start it, and check the address."
        ) from error
