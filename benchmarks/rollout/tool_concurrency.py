"""Measure 256 episodes whose tool blocks for 2 s on 64 slots: total time (8 s at best), and lag of the event loop.

    python -m benchmarks.rollout.tool_concurrency [--episodes 256] [--slots 64] [--seconds 2] [--cases function sandbox]

Whole episodes run through `AgentLoop`: a call, its answer, a last turn. The cases:

function   a plain Python function that sleeps, in threads; the slots are the tool's `max_concurrency`
sandbox    `code_interpreter` on the machine's isolation level with so many slots; the program sleeps

Loop lag is the delay of a 1 ms sleep on the event loop while the episodes run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentloop import AgentLoop, Limits, Tool, tool
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.tool_env import ToolEnv
from agentloop.episodes.worker import RolloutWorker
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.tools.rate_limits import SharedLimit
from agentloop.tools.toolset import Toolset
from agentloop.types.requests import RolloutRequest
from benchmarks import results_file

TICK = 0.001
ROW = {"id": "0", "messages": [{"role": "user", "content": "Wait."}]}


def function_case(args: argparse.Namespace, folder: Path) -> tuple[Tool, dict[str, Any]]:
    @tool(timeout=args.seconds + 30)
    def wait(seconds: float) -> str:
        """Wait."""
        time.sleep(seconds)
        return "done"

    wait.limit = SharedLimit("wait", max_concurrency=args.slots, folder=folder)
    return wait, {"seconds": args.seconds}


def sandbox_case(args: argparse.Namespace, folder: Path) -> tuple[Tool, dict[str, Any]]:
    code = f"import time\ntime.sleep({args.seconds})\nprint('done')"
    return CodeInterpreter(slots=args.slots, timeout=args.seconds + 30), {"code": code}


CASES = {"function": function_case, "sandbox": sandbox_case}


async def lag_of_loop(lags: list[float]) -> None:
    while True:
        started = time.perf_counter()
        await asyncio.sleep(TICK)
        lags.append(time.perf_counter() - started - TICK)


def scripted(arguments: dict[str, Any], name: str) -> tuple[ScriptedEngine, Any]:
    tokenizer = build_tokenizer()
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    turns = [
        tokenizer.backend_tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False).ids for text in (call, "ok")
    ]
    return ScriptedEngine(turns), renderer_for(tokenizer)


async def measure(case: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    used, arguments = CASES[case](args, folder)
    toolset = Toolset([used])
    engine, renderer = scripted(arguments, used.name)
    loop = AgentLoop(engine, renderer, limits=Limits())
    worker = RolloutWorker(loop, lambda _: ToolEnv(ROW, toolset=toolset), max_concurrency=args.episodes)
    await toolset.start()
    lags: list[float] = []
    probe = asyncio.create_task(lag_of_loop(lags))
    started = time.perf_counter()
    group = await worker.play(RolloutRequest(group_id="g", row=0, n=args.episodes, seed=0))
    wall = time.perf_counter() - started
    probe.cancel()
    await toolset.shutdown()
    answers = [m["content"] for t in group.trajectories for m in t.messages if m["role"] == "tool"]
    return {
        "episodes": args.episodes,
        "slots": args.slots,
        "tool_seconds": args.seconds,
        "wall_seconds": wall,
        "ideal_seconds": -(-args.episodes // args.slots) * args.seconds,
        "answers_right": sum(str(answer).strip() == "done" for answer in answers),
        "answers": len(answers),
        "loop_lag_ms": milliseconds(lags),
    }


def milliseconds(lags: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.percentile(lags, [50, 99]) * 1000
    return {"p50": float(p50), "p99": float(p99), "max": max(lags) * 1000, "samples": len(lags)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    result = {}
    for case in args.cases:
        with tempfile.TemporaryDirectory() as folder:
            result[case] = asyncio.run(measure(case, args, Path(folder)))
        print(json.dumps({case: result[case]}, indent=1), flush=True)
    print(results_file.write("tool_concurrency", result))


if __name__ == "__main__":
    main()
