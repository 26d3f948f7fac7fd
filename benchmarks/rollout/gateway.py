"""Measure the cost of the gateway: calls per second of one process, and the time that it blocks its event loop.

    python -m benchmarks.rollout.gateway [--agents 128] [--turns 16]

Agents in processes of their own hold a conversation each, over plain HTTP: every call sends the whole history, and
adds a message of 120 words. The engine takes no time. The same run also plays these episodes through the agent loop,
without HTTP, to compare an external agent with an environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from agentloop import AgentLoop, Env, Limits, Observation
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.episodes.worker import RolloutWorker
from agentloop.gateway import Gateway, Sampling
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


async def converse(urls: list[str], turns: int) -> None:
    """Run all agents of a client process."""
    import httpx

    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as client:

        async def one(url: str) -> None:
            messages: list[dict[str, Any]] = []
            for _ in range(turns):
                messages.append({"role": "user", "content": WORDS})
                answer = await client.post(f"{url}/chat/completions", json={"model": "m", "messages": messages})
                messages.append(answer.raise_for_status().json()["choices"][0]["message"])

        await asyncio.gather(*map(one, urls))


async def lags(found: list[float]) -> None:
    while True:
        started = time.perf_counter()
        await asyncio.sleep(0.001)
        found.append(time.perf_counter() - started - 0.001)


async def through_the_gateway(gateway: Gateway, agents: int, turns: int) -> dict[str, float]:
    sessions = [gateway.session(limits=LIMITS, sampling=Sampling(), trajectory_id=str(k)) for k in range(agents)]
    opened = [await session.__aenter__() for session in sessions]
    found: list[float] = []
    watch = asyncio.create_task(lags(found))
    wall, cpu = time.perf_counter(), time.process_time()
    urls = [endpoint.base_url for _, endpoint in opened]
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.rollout.gateway", "--urls", json.dumps(urls), "--turns", str(turns)
    )
    assert await client.wait() == 0
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    watch.cancel()
    for session in sessions:
        await session.__aexit__(None, None, None)
    streams = [session.trajectories() for session, _ in opened]
    assert all(len(each) == 1 and each[0].num_turns == turns for each in streams)
    found.sort()
    return {
        "calls": agents * turns,
        "calls_per_second": agents * turns / wall,
        "cpu_ms_per_call": cpu / (agents * turns) * 1e3,
        "tokens_of_a_stream": len(streams[0][0]),
        "loop_lag_ms_median": found[len(found) // 2] * 1e3,
        "loop_lag_ms_p99": found[int(len(found) * 0.99)] * 1e3,
        "loop_lag_ms_max": found[-1] * 1e3,
    }


async def through_the_loop(loop: AgentLoop, agents: int, turns: int) -> dict[str, float]:
    cpu = time.process_time()
    worker = RolloutWorker(loop, lambda _: Talk(turns), max_concurrency=agents)
    group = await worker.play(RolloutRequest(group_id="g", row=0, n=agents, seed=0))
    cpu = time.process_time() - cpu
    assert all(trajectory.num_turns == turns for trajectory in group.trajectories)
    return {"cpu_ms_per_turn": cpu / (agents * turns) * 1e3}


async def measure(agents: int, turns: int) -> dict[str, Any]:
    renderer = renderer_for(load_tokenizer())
    ids = [*renderer.encode("The model says a sentence of a dozen words or so."), renderer.stop_token_ids[0]]
    engine = ScriptedEngine([ids])
    await through_the_gateway(Gateway(engine, renderer), 4, 4)  # warm
    return {
        "agents": agents,
        "turns": turns,
        "gateway": await through_the_gateway(Gateway(engine, renderer), agents, turns),
        "agent_loop": await through_the_loop(AgentLoop(engine, renderer, limits=LIMITS), agents, turns),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=128)
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--urls", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.urls:
        asyncio.run(converse(args.urls, args.turns))
        return
    result = asyncio.run(measure(args.agents, args.turns))
    print(json.dumps(result, indent=1))
    print(results_file.write("gateway", result))


if __name__ == "__main__":
    main()
