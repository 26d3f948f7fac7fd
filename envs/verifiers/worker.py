"""Worker of verifiers (`agentloop.envs.workers.script`): runs rollouts of an environment of its v1 API."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.env import EnvConfig
from verifiers.v1.runtimes import PrimeConfig
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_environment, load_harness, load_taskset, resolve_env_config, taskset_class

_EPISODES = 256
"""Episodes after which an environment's servers are replaced, because they keep a client for each address they saw."""


class Worker:
    """Tasks and rollouts of one environment."""

    def __init__(self, id: str, config: Mapping[str, Any], seat: str | None) -> None:
        os.environ["PATH"] = os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ["PATH"]]
        )  # the package calls uv
        self.config, self.seat = configured(imported(id), config, seat)
        self.taskset = load_taskset(self.config.taskset)
        self.tasks: dict[str, Any] = {}
        self.playing: dict[str, asyncio.Task[Any]] = {}
        self.served: Served | None = None

    def rows(self, split: str, size: int | None) -> Iterator[dict[str, Any]]:
        """Yield the first `size` tasks."""
        if size is None and not self.taskset.bounded:
            raise ValueError(f"the tasks of {self.config.taskset.id} never end: set size")
        for task in itertools.islice(self.taskset, size):
            name = task.data.id or task.data.name or f"{self.config.env_id}-{task.data.idx}"
            yield {"id": name, "data": task.data.model_dump(mode="json", exclude_none=True)}

    def start(self, episode: str, arguments: Mapping[str, Any]) -> None:
        """Create the task of a row."""
        kind = type(self.taskset).task_type()
        self.tasks[episode] = kind(kind.data_type().model_validate(arguments["data"]), self.config.taskset.task)

    async def step(self, episode: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Run the rollout of a task with a model. Return its reward and metrics."""
        if self.served is None or self.served.is_used_up:
            self.served = Served(self.config)
        rollout = asyncio.ensure_future(self.served.play(self.tasks[episode], arguments))
        self.playing[episode] = rollout
        return outcome(await rollout, self.seat)

    async def close(self, episode: str) -> None:
        """Stop the rollout if it still runs, and forget it."""
        self.tasks.pop(episode, None)
        rollout = self.playing.pop(episode, None)
        if rollout is not None:
            rollout.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await rollout


class Served:
    """An environment with its servers, for a number of episodes. It ends with the last of them."""

    def __init__(self, config: EnvConfig) -> None:
        self.env = load_environment(config)
        self.begun = self.ended = 0
        self.is_up = asyncio.get_running_loop().create_future()
        self.is_idle = asyncio.Event()
        self.serving = asyncio.ensure_future(self.serve())

    @property
    def is_used_up(self) -> bool:
        """Whether the next episode needs another environment."""
        return self.begun >= _EPISODES or self.serving.done()

    async def serve(self) -> None:
        """Keep the servers open in one task, because some must be entered and left in the same task."""
        try:
            async with self.env.serving():
                self.is_up.set_result(None)
                await self.is_idle.wait()
        except Exception as error:
            if self.is_up.done():
                raise
            self.is_up.set_exception(error)

    async def play(self, task: Any, address: Mapping[str, str]) -> Any:
        """Return the episode of a task."""
        self.begun += 1
        try:
            await asyncio.shield(self.is_up)
            # The address contains the episode's key. Naming a variable keeps the package from searching for one.
            client = EvalClientConfig(base_url=address["base_url"], api_key_var="AGENTLOOP_NO_KEY")
            context = ModelContext(model=address["model"], client=client, sampling=SamplingConfig())
            (slot,) = self.env.slots(task)
            return await self.env.run_slot(slot, context)
        finally:
            self.ended += 1
            if self.ended == self.begun >= _EPISODES:
                self.is_idle.set()


def imported(id: str) -> str:
    """Return the name under which an environment can be imported. Make a file importable."""
    if not id.endswith(".py"):
        return id
    sys.path.insert(0, str(Path(id).parent))
    return Path(id).stem


def configured(id: str, given: Mapping[str, Any], seat: str | None) -> tuple[EnvConfig, str]:
    """Return the configuration of an environment, and the seat to train. Raises `ValueError`."""
    taskset_class(id)  # its error is clearer than the configuration's
    plain = {**given, "taskset": {**(given.get("taskset") or {}), "id": id}}
    config = resolve_env_config(plain)
    seats = agent_config_fields(config)
    if seat is None and len(seats) == 1:
        (seat,) = seats
    if seat is None or seat not in seats:
        raise ValueError(f"{config.env_id} has the seats {', '.join(seats)}: set seat to the one to train")
    if seats[seat].client is not None:
        raise ValueError(f"the seat {seat} has its own client, so it could not be trained: remove the client")
    if others := [name for name, spec in seats.items() if name != seat and spec.client is None]:
        raise ValueError(
            f"the seats {', '.join(others)} would play with the trained model and be trained with the reward of "
            f"{seat}: give each a client, {{{others[0]}: {{model: ..., client: {{type: eval, base_url: ...}}}}}}"
        )
    local = {}
    for name, spec in seats.items():
        if not isinstance(spec.runtime, PrimeConfig) or "runtime" in (given.get(name) or {}):
            continue
        harness = config.agent_harnesses()[name]
        if load_harness(harness).EXECUTES_CODE:
            raise ValueError(
                f"the harness {harness.id} of the seat {name} executes code: set where, as in "
                f"{{{name}: {{runtime: {{type: docker}}}}}}, or choose one that does not, {{{name}: {{harness: "
                '{id: "null"}}}'
            )
        local[name] = {**(given.get(name) or {}), "runtime": {"type": "subprocess"}}
    return resolve_env_config({**plain, **local}), seat


def outcome(episode: Any, seat: str) -> dict[str, Any]:
    """Return the mean reward and metrics of the trained seat. Raises `RuntimeError` if the episode failed."""
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        said = f"{errors[-1].type}: {errors[-1].message}" if errors else "it gave no reason"
        raise RuntimeError(f"the rollout failed: {said}")
    names = {trace.agent.name for trace in episode.traces}
    traces = [trace for trace in episode.traces if trace.agent.name == seat or len(names) == 1]
    rewards = [each for trace in traces for each in trace.rewards.values()]
    is_judged = bool(traces) and all(trace.rewards for trace in traces) and None not in rewards
    metrics: dict[str, list[float]] = {}
    for trace in traces:
        signals = {name: each.score for name, each in trace.rewards.items() if each is not None}
        for name, value in {**trace.metrics, **signals}.items():
            if value is not None:
                metrics.setdefault(name, []).append(float(value))
    return {
        "reward": sum(trace.reward for trace in traces) / len(traces) if is_judged else None,
        "metrics": {name: sum(values) / len(values) for name, values in metrics.items()},
    }
