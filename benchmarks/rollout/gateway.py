"""Measure the cost of the gateway for each dialect: processor time of a call, latency, and how long its loop blocks.

    [chrt --reset-on-fork --fifo 1] python -m benchmarks.rollout.gateway [--agents 512] [--turns 6] [--seconds 2]
        [--repeats 3]

The agents are episodes of one rollout worker, in a process of their own. Each has one conversation over plain HTTP:
every call sends the whole history and adds a message of 120 words. The engine takes `--seconds` for a turn, and the
starts of the agents are spread over that time. Loop lag is the delay of a sleep of 10 ms. Its own part is at most the
time in which the thread of the loop computed; in the rest other programs had its core. `chrt` gives the loop its core
at once on a busy machine. One agent alone, with an engine that takes no time, measures the latency of a call. The same
episodes played through the agent loop, without HTTP, compare an external agent with an environment. All figures are of
each repetition and their median, as other programs may run on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from typing import Any

from agentloop import AgentLoop, Env, Limits, Observation
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.agent.program import AgentProgram, Endpoint
from agentloop.episodes.worker import RolloutWorker
from agentloop.rendering import renderer_for
from agentloop.types.requests import RolloutRequest
from benchmarks import results_file
from benchmarks.rollout.loop_overhead import load_tokenizer

WORDS = "a tool said something that the model had asked it for in the turn before " * 8
LIMITS = Limits(max_turns=1 << 20, max_tokens=1 << 20)


class Talk(Env):
    def __init__(self, turns: int) -> None:
        self.left = turns

    async def reset(self) -> Observation:
        return Observation([{"role": "user", "content": WORDS}])

    async def step(self, message: Any) -> tuple[Observation, float, bool, bool]:
        self.left -= 1
        return Observation([{"role": "user", "content": WORDS}]), 0.0, self.left == 0, False


PATHS = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}


def body_of(dialect: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    if dialect == "responses":
        return {"model": "m", "input": items, "store": False}
    return {"model": "m", "max_tokens": 1 << 16, "messages": items}


def answer_of(dialect: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the agent appends to its history."""
    if dialect == "chat":
        return [answer["choices"][0]["message"]]
    if dialect == "messages":
        return [{"role": "assistant", "content": answer["content"]}]
    return list(answer["output"])


async def converse(dialect: str, urls: list[str], turns: int, seconds: float) -> None:
    """Run all agents of a client process, and print the seconds of their calls."""
    import httpx

    latencies = []

    async def one(number: int, url: str) -> None:
        items: list[dict[str, Any]] = []
        await asyncio.sleep(seconds * number / len(urls))
        # A client for each agent: one for all would search its pool of connections for each call.
        async with httpx.AsyncClient(timeout=600, verify=False, trust_env=False) as client:
            for _ in range(turns):
                items.append({"role": "user", "content": WORDS})
                started = time.perf_counter()
                answer = await client.post(f"{url}/{PATHS[dialect]}", json=body_of(dialect, items))
                latencies.append(time.perf_counter() - started)
                items += answer_of(dialect, answer.raise_for_status().json())

    await asyncio.gather(*(one(number, url) for number, url in enumerate(urls)))
    print(json.dumps(latencies))


class Lag:
    """How late sleeps of 10 ms end, in ms: in all, and at most because of what the thread of the loop computes.

    The difference is the time in which other programs had its core.
    """

    def __init__(self) -> None:
        self.all: list[float] = []
        self.own: list[float] = []

    async def watch(self) -> None:
        while True:
            due, computed = time.perf_counter() + 0.01, time.thread_time()
            await asyncio.sleep(0.01)
            late, computed = time.perf_counter() - due, time.thread_time() - computed
            self.all.append(late * 1e3)
            self.own.append(min(late, computed) * 1e3)

    def figures(self) -> dict[str, float]:
        every, own = sorted(self.all), sorted(self.own)
        place = int(len(every) * 0.99)
        return {
            "loop_lag_ms_median": statistics.median(every),
            "loop_lag_ms_p99": every[place],
            "loop_lag_ms_max": every[-1],
            "loop_lag_own_ms_p99": own[place],
            "loop_lag_own_ms_max": own[-1],
        }


class Clients:
    """The agents of a dialect, in a process of their own. Each episode waits until all of them have ended."""

    def __init__(self, dialect: str, agents: int, turns: int, seconds: float) -> None:
        self.agents = agents
        self.urls: list[str] = []
        self.over: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self.options = ["--dialect", dialect, "--turns", str(turns), "--seconds", str(seconds)]

    async def agent(self, task: Any, model: Endpoint) -> float:
        self.urls.append(model.base_url)
        if len(self.urls) == self.agents:
            self.over.set_result(await self.talk())
        await self.over
        return 1.0

    async def talk(self) -> list[float]:
        """Return the seconds of each call."""
        command = [sys.executable, "-m", "benchmarks.rollout.gateway", "--urls", json.dumps(self.urls), *self.options]
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output, _ = await client.communicate()
        assert client.returncode == 0
        return sorted(json.loads(output))


async def through_the_gateway(
    loop: AgentLoop, dialect: str, agents: int, turns: int, seconds: float
) -> dict[str, float]:
    clients = Clients(dialect, agents, turns, seconds)
    worker = RolloutWorker(loop, lambda _: AgentProgram({}, agent=clients.agent), max_concurrency=agents)
    lag = Lag()
    watch = asyncio.create_task(lag.watch())
    wall, cpu = time.perf_counter(), time.process_time()
    group = await worker.play(RolloutRequest(group_id="g", row=0, n=agents, seed=0))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    watch.cancel()
    latencies = clients.over.result()
    assert len(latencies) == agents * turns
    assert all(stream.num_turns == turns and not stream.branches for stream in group.trajectories)
    return {
        "calls_per_second": agents * turns / wall,
        "cpu_ms_per_call": cpu / (agents * turns) * 1e3,
        "latency_ms_median": (latencies[len(latencies) // 2] - seconds) * 1e3,
        "tokens_of_a_stream": len(group.trajectories[0]),
        **lag.figures(),
    }


async def through_the_loop(loop: AgentLoop, agents: int, turns: int) -> dict[str, float]:
    cpu = time.process_time()
    worker = RolloutWorker(loop, lambda _: Talk(turns), max_concurrency=agents)
    group = await worker.play(RolloutRequest(group_id="g", row=0, n=agents, seed=0))
    cpu = time.process_time() - cpu
    assert all(trajectory.num_turns == turns for trajectory in group.trajectories)
    return {"cpu_ms_per_turn": cpu / (agents * turns) * 1e3}


def median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


async def measure(agents: int, turns: int, seconds: float, repeats: int) -> dict[str, Any]:
    renderer = renderer_for(load_tokenizer())
    ids = [*renderer.encode("The model says a sentence of a dozen words or so."), renderer.stop_token_ids[0]]
    instant = AgentLoop(ScriptedEngine([ids]), renderer, limits=LIMITS)
    slow = AgentLoop(ScriptedEngine([ids], seconds_per_turn=seconds), renderer, limits=LIMITS)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in PATHS}
    alone: dict[str, list[dict[str, float]]] = {name: [] for name in PATHS}
    loop: list[dict[str, float]] = []
    for _ in range(repeats):
        for name in PATHS:
            await through_the_gateway(instant, name, 1, 4, 0.0)  # warm
            alone[name].append(await through_the_gateway(instant, name, 1, 64, 0.0))
            runs[name].append(await through_the_gateway(slow, name, agents, turns, seconds))
        loop.append(await through_the_loop(instant, agents, turns))
    own = median(loop)["cpu_ms_per_turn"]
    dialects = {
        name: {
            "at_once": median(runs[name]),
            "alone": median(alone[name]),
            "runs_at_once": runs[name],
            "runs_alone": alone[name],
            "cpu_over_agent_loop": median(runs[name])["cpu_ms_per_call"] / own,
            "cpu_over_chat": median(runs[name])["cpu_ms_per_call"] / median(runs["chat"])["cpu_ms_per_call"],
        }
        for name in PATHS
    }
    return {
        "agents": agents,
        "turns": turns,
        "seconds_of_a_turn": seconds,
        "load_of_the_machine": os.getloadavg()[0],
        "real_time_priority": bool(os.sched_getscheduler(0) & os.SCHED_FIFO),
        "agent_loop": {"cpu_ms_per_turn": own},
        "dialects": dialects,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=512)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dialect", choices=PATHS, default="chat", help=argparse.SUPPRESS)
    parser.add_argument("--urls", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.urls:
        asyncio.run(converse(args.dialect, args.urls, args.turns, args.seconds))
        return
    result = asyncio.run(measure(args.agents, args.turns, args.seconds, args.repeats))
    print(json.dumps(result, indent=1))
    print(results_file.write("gateway", result))


if __name__ == "__main__":
    main()
