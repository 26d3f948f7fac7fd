"""Compare Ray workers with workers in this process: episodes per second, messages, bytes, and transfer of weights.

    python -m benchmarks.rollout.ray_workers [--gigabytes 1]        writes results/ray_workers.json

A scripted engine answers at once, so only the overhead of workers is measured. All ratios are of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from agentloop.config.loading import load_config
from agentloop.config.resolved import Facts, resolve
from agentloop.config.run import RunConfig
from agentloop.episodes.setup import RolloutSetup
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.trainer.run.workers import make_workers
from agentloop.trainer.workers.protocol import Workers
from agentloop.trainer.workers.requests import make_requests, play_all
from agentloop.weights.shelf import WeightShelf
from agentloop.weights.tensors import TensorWeights
from benchmarks.results_file import write

_TASK = '''
def tasks():
    return [{"prompt": f"What is {n}?", "answer": n} for n in range(64)]

def echo(n: int) -> str:
    """Say a number."""
    return str(n)

def script(trajectory_id, turn, prompt, params):
    return CALL if turn < 4 else ANSWER
'''


def recipe(folder: Path) -> Path:
    """Write a recipe of five turns and four calls an episode."""
    from transformers import Qwen3ForCausalLM

    from agentloop.recipes.tiny.model import model_config

    tokenizer = build_tokenizer()
    Qwen3ForCausalLM(model_config(tokenizer)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    call = '<tool_call>\n{"name": "echo", "arguments": {"n": 1}}\n</tool_call><|im_end|>'
    turns = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (call, "1<|im_end|>")]
    (folder / "task.py").write_text(f"CALL, ANSWER = {turns}\n{_TASK}")
    config = folder / "config.yaml"
    config.write_text(
        "model: ./model\n"
        "data: {train: task.py:tasks}\n"
        "env: {tools: [task.py:echo], reward: last_number}\n"
        "limits: {max_turns: 6, max_turn_tokens: 64, max_tokens: 1000}\n"
        "engine: {name: scripted, options: {script: task.py:script}, max_concurrency: 64}\n"
        "learner: {device: cpu}\n"
    )
    return config


async def episodes_per_second(workers: Workers, num_groups: int) -> tuple[float, Any]:
    """Return episodes per second for groups of 8, and one trajectory."""
    await play_all(workers, make_requests("warm", range(8), n=8, seed=0))
    started = time.perf_counter()
    orders = make_requests("x", [place % 64 for place in range(num_groups)], n=8, seed=0)
    groups = await play_all(workers, orders)
    return num_groups * 8 / (time.perf_counter() - started), groups[0].trajectories[0]


async def seconds_of_update(workers: Workers, weights: list[tuple[str, torch.Tensor]]) -> float:
    """Return the best of three measurements."""
    times = []
    for version in (1, 2, 3):
        started = time.perf_counter()
        await workers.update_weights(TensorWeights(weights), version)
        times.append(time.perf_counter() - started)
    return min(times)


def seconds_of_shelf(weights: list[tuple[str, torch.Tensor]]) -> float:
    """Return the seconds to write weights to the shelf that the engines of a host map."""
    shelf, times = WeightShelf(), []
    for _ in range(3):
        started = time.perf_counter()
        shelf.put(weights)
        times.append(time.perf_counter() - started)
    return min(times)


async def measure(folder: Path, gigabytes: float, num_groups: int) -> dict[str, Any]:
    path = recipe(folder)
    weights = [(f"w{k}", torch.empty(32 << 20, dtype=torch.bfloat16).fill_(k)) for k in range(int(gigabytes * 16))]
    result: dict[str, Any] = {"gigabytes": gigabytes, "seconds_of_shelf": seconds_of_shelf(weights)}
    for name, overrides in {
        "local": [],
        "ray_1": ["workers={kind: ray, count: 1}"],
        "ray_2": ["workers={kind: ray, count: 2}"],
    }.items():
        config = load_config(RunConfig, path, overrides)
        model = Path(config.model)
        workers = make_workers(resolve(config, Facts(model=model)), RolloutSetup.load(config, model))
        await workers.start()
        rate, trajectory = await episodes_per_second(workers, num_groups)
        result[name] = {"episodes_per_second": rate}
        if name != "local":
            result[name]["seconds_of_update"] = await seconds_of_update(workers, weights)
        await workers.close()
    result["bytes_of_a_trajectory"] = len(pickle.dumps(trajectory, protocol=5))
    result["tokens_of_a_trajectory"] = len(trajectory)
    result["turns_of_a_trajectory"] = trajectory.num_turns
    result["ray_1_over_local"] = result["ray_1"]["episodes_per_second"] / result["local"]["episodes_per_second"]
    result["ray_2_over_local"] = result["ray_2"]["episodes_per_second"] / result["local"]["episodes_per_second"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--groups", type=int, default=256)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), arguments.gigabytes, arguments.groups))
    print(write("ray_workers", result).read_text())


if __name__ == "__main__":
    main()
