"""Tokens a second: vLLM alone, the same engine under agentloop's agent loops, and several engines on one GPU.

    python benchmarks/engine_throughput.py --shape 0.6B --engines 2 3

Random weights of the shape of a Qwen3 model; prompts of about 256 tokens, 512 sampled tokens an episode, `--in-flight`
episodes for each engine at all times until the tasks run out. `bare` is `AsyncLLM.generate` with the sampling
parameters that the engine adapter uses; `loops` are episodes of one turn through `RolloutWorker`. `..._of_4_turns` is
the same number of sampled tokens in four turns with an answer between them. All run on one started engine in turn,
several times, and the median counts. `engines_N` is N Ray workers in the same run, each with `--share` of the card, by
default 1/N (`workers.gpus`). No prompt comes twice, so that none is in a cache.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import results_file
import torch
from qwen3 import empty_model

from agentloop.config_loading import load_config
from agentloop.engines import FinishReason, SamplingParams
from agentloop.engines.vllm import VllmEngine
from agentloop.engines.vllm_requests import vllm_params
from agentloop.trainer.episodes import Episodes
from agentloop.trainer.run_config import RunConfig
from agentloop.trainer.workers.factory import make_workers
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.orders import make_orders, play_all

SAMPLED = 512
ANSWER = 28
"""Tokens of an answer of `Replies`."""
_REPLIES = Path(__file__).parent / "replies.py"
_numbers = itertools.count()


class EndingEngine(VllmEngine):
    """Takes a turn that was cut for one that ended: random weights never end one."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        turn = await super().generate(*args, **kwargs)
        return replace(turn, finish_reason=FinishReason.STOP)


def config_of(folder: Path, args: argparse.Namespace, *, turns: int = 1, engines: int = 0) -> RunConfig:
    sampled = args.sampled // turns
    settings = [
        f"limits={{max_turns: {turns}, max_turn_tokens: {sampled}, max_tokens: {args.longest}}}",
        f"env={{factory: '{_REPLIES}:Replies', options: {{turns: {turns}}}}}",
        f"engine.max_concurrency={args.in_flight}",
        f"engine.options={{load_format: dummy, max_model_len: {args.longest}, max_num_seqs: {args.in_flight}}}",
    ]
    if engines:
        share = args.share or (int(100 / engines) / 100 if torch.cuda.is_available() else 0)
        settings.append(f"workers={{kind: ray, count: {engines}, gpus: {share}, show_logs: true}}")
    path = folder / "run.yaml"
    rows = (args.repeats + 1) * args.episodes_per_engine * max(engines, 1)
    options = f"{{num_rows: {rows}, num_words: {args.prompt_words}}}"
    path.write_text(
        f"model: {folder}\n"
        f"data: {{train: '{_REPLIES}:questions', train_options: {options}}}\n"
        "engine: {name: vllm}\nlearner: {}\n"
    )
    return load_config(RunConfig, path, settings)


async def bare(engine: VllmEngine, prompts: list[list[int]], args: argparse.Namespace, turns: int = 1) -> float:
    """Tokens a second of vLLM itself, in one request an episode or in several, each with what was sampled before and
    `ANSWER` tokens more."""
    from vllm.inputs import tokens_input

    room = asyncio.Semaphore(args.in_flight)
    params = vllm_params(SamplingParams(max_tokens=args.sampled // turns), args.longest)

    async def one(prompt: list[int]) -> int:
        sampled = 0
        salt = str(next(_numbers))
        async with room:
            for turn in range(turns):
                request = tokens_input(prompt, cache_salt=salt)
                async for output in engine._llm.generate(request, params, f"bare-{salt}-{turn}"):
                    ids = output.outputs[0].token_ids
                sampled += len(ids)
                prompt = [*prompt, *ids, *range(ANSWER)]
        return sampled

    started = time.perf_counter()
    return sum(await asyncio.gather(*(one(prompt) for prompt in prompts))) / (time.perf_counter() - started)


async def played(workers: Any, first: int, count: int) -> dict[str, float]:
    """Of so many episodes from the first row on: sampled tokens a second, and what they were like."""
    started = time.perf_counter()
    orders = make_orders(f"x{next(_numbers)}", range(first, first + count), n=1, seed=next(_numbers))
    groups = await play_all(workers, orders)
    seconds = time.perf_counter() - started
    episodes = [episode for group in groups for episode in group.trajectories]
    assert not any(episode.error for episode in episodes), episodes[0].error
    sampled = sum(int(episode.loss_mask.sum()) for episode in episodes)
    return {
        "tokens_per_second": sampled / seconds,
        "sampled_an_episode": sampled / len(episodes),
        "turns_an_episode": sum(episode.num_turns for episode in episodes) / len(episodes),
        "tokens_an_episode": sum(map(len, episodes)) / len(episodes),
    }


async def one_engine(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    engine = EndingEngine(folder, load_format="dummy", max_model_len=args.longest, max_num_seqs=args.in_flight,
                          gpu_memory_utilization=args.memory, shares_gpu=True)  # fmt: skip
    started = time.perf_counter()
    cases = {"loops": 1, "loops_of_4_turns": 4}
    workers = {}
    for name, turns in cases.items():
        config = config_of(folder, args, turns=turns)
        workers[name] = LocalWorkers(Episodes.load(config, folder), engine)
    await engine.start()
    result: dict[str, Any] = {"engine_start_seconds": time.perf_counter() - started}
    episodes = workers["loops"].episodes
    count = args.episodes_per_engine
    prompts = [episodes.renderer.encode(row["messages"][0]["content"]) for row in episodes.train[:count]]
    await bare(engine, prompts[: args.in_flight], args)  # warm-up
    found: dict[str, list[float]] = {name: [] for name in ("bare", "bare_of_4_turns", *cases)}
    for repeat in range(args.repeats):
        found["bare"].append(await bare(engine, prompts, args))
        found["bare_of_4_turns"].append(await bare(engine, prompts, args, turns=4))
        for name in cases:
            engine._updates += 1  # else the prompts of one case would be in the cache for the other
            result[name] = await played(workers[name], repeat * count, count)
            found[name].append(result[name].pop("tokens_per_second"))
    await engine.close()
    for name, rates in found.items():
        result[name] = result.get(name, {}) | {"tokens_per_second": statistics.median(rates), "all": rates}
    for name in cases:
        result[f"{name}_over_bare"] = statistics.median(
            mine / theirs for mine, theirs in zip(found[name], found[name.replace("loops", "bare")], strict=True)
        )
    return result


async def several_engines(folder: Path, args: argparse.Namespace, engines: int) -> dict[str, Any]:
    config = config_of(folder, args, engines=engines)
    workers = make_workers(config, folder, Episodes.load(config, folder))
    started = time.perf_counter()
    await workers.start()
    try:
        seconds = time.perf_counter() - started
        count = args.episodes_per_engine * engines
        await played(workers, 0, args.in_flight * engines)  # warm-up
        runs = [await played(workers, repeat * count, count) for repeat in range(1, args.repeats + 1)]
    finally:
        await workers.close()
    rates = [run.pop("tokens_per_second") for run in runs]
    return runs[-1] | {"start_seconds": seconds, "tokens_per_second": statistics.median(rates), "all": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6B")
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--episodes-per-engine", type=int, default=768)
    parser.add_argument("--prompt-words", type=int, default=240)
    parser.add_argument("--sampled", type=int, default=SAMPLED)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--share", type=float, help="GPUs of a worker, in place of the same part for each")
    parser.add_argument("--memory", type=float, default=0.85)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engines", type=int, nargs="*", default=[2, 3])
    args = parser.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    result: dict[str, Any] = vars(args) | {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = empty_model(args.shape, Path(scratch))
        result["one_engine"] = asyncio.run(one_engine(folder, args))
        print(result["one_engine"], flush=True)
        results_file.write("engine_throughput", result, gpu=gpu)
        for count in args.engines:
            found = asyncio.run(several_engines(folder, args, count))
            found["over_bare"] = found["tokens_per_second"] / result["one_engine"]["bare"]["tokens_per_second"]
            result[f"engines_{count}"] = found
            print(count, found, flush=True)
            results_file.write("engine_throughput", result, gpu=gpu)


if __name__ == "__main__":
    main()
