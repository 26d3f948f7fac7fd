"""Worker of verifiers (`agentloop.envs.workers.script`): runs rollouts of an environment with the older API.

Such an environment is a module with a function `load_environment`. The last version with this API is 0.3.1.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import verifiers as vf
from verifiers.clients import resolve_client
from verifiers.types import ClientConfig

_problems: ContextVar[list[str] | None] = ContextVar("problems", default=None)
"""Errors of reward functions in the running rollout."""


class Worker:
    """Tasks and rollouts of one environment."""

    def __init__(self, id: str, config: Mapping[str, Any], seat: str | None) -> None:
        if seat is not None:
            raise ValueError("environments of the older API have no seats: remove seat")
        if id.endswith(".py"):
            sys.path.insert(0, str(Path(id).parent))
            id = Path(id).stem
        self.id = id
        self.env = vf.load_environment(id, **config)
        if getattr(self.env, "requires_group_rollouts", False):
            raise ValueError(f"{id} judges the rollouts of a group together, but agentloop judges each one separately")
        logging.getLogger("verifiers").addHandler(_Listener(logging.ERROR))
        self.inputs: dict[str, Any] = {}
        self.playing: dict[str, asyncio.Task[Any]] = {}

    def rows(self, split: str, size: int | None) -> Iterator[dict[str, Any]]:
        """Yield the first `size` rows of a dataset."""
        found = self.env.get_dataset() if split == "train" else self.env.get_eval_dataset()
        for index, row in enumerate(itertools.islice(found, size)):
            answer = {"answer": row["answer"]} if "answer" in row else {}
            yield {"id": f"{self.id}-{split}-{index}", "data": row, **answer}

    def start(self, episode: str, arguments: Mapping[str, Any]) -> None:
        """Keep the row of a rollout."""
        self.inputs[episode] = arguments["data"]

    async def step(self, episode: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Run the rollout of a row with a model. Return its reward and metrics."""
        rollout = asyncio.ensure_future(self.play(self.inputs[episode], arguments))
        self.playing[episode] = rollout
        return await rollout

    async def close(self, episode: str) -> None:
        """Stop the rollout if it still runs, and forget it."""
        self.inputs.pop(episode, None)
        rollout = self.playing.pop(episode, None)
        if rollout is not None:
            rollout.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await rollout

    async def play(self, row: Any, address: Mapping[str, str]) -> dict[str, Any]:
        """Return the outcome of a rollout. Raises `RuntimeError` if it failed."""
        problems: list[str] = []
        _problems.set(problems)
        # The address contains the episode's key. Naming a variable keeps the package from searching for another key.
        client = resolve_client(ClientConfig(api_base_url=address["base_url"], api_key_var="AGENTLOOP_NO_KEY"))
        try:
            found = await self.env.run_rollout(row, client, address["model"], {})
        finally:
            await client.close()
        if found.get("error"):
            raise RuntimeError(f"the rollout failed: {found['error']}")
        if problems:  # the package would count them as 0
            raise RuntimeError(problems[0])
        return {"reward": found["reward"], "metrics": found["metrics"]}


class _Listener(logging.Handler):
    """Log handler that collects errors of reward functions, which the package only logs before it counts 0."""

    def emit(self, record: logging.LogRecord) -> None:
        problems = _problems.get()
        if problems is not None and ".rubrics." in record.name:
            problems.append(record.getMessage())
