"""Measure tokens per second of an SGLang server alone and under agent loops, and its pause for new weights.

    python -m benchmarks.rollout.sglang_engine --shape 0.6B

One server has random weights in the shape of a Qwen3 model. `bare` sends requests to its `/generate` with the
parameters of the engine adapter. `loops` plays episodes through `LocalWorkers` on the same server. `..._of_4_turns`
samples as many tokens in four turns with an answer between them. Each is measured `--repeats` times in turn. The
median counts, and no prompt occurs twice.

For the pauses, `--busy` turns are always in flight, and one more request streams its tokens. `pause_seconds` is the
time between its last token of the old weights and its first one of the new weights, `step_seconds` the usual time
between tokens. The learner has parameters in float32 on the same GPU and casts them to bfloat16 one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import torch

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.engines import FinishReason, SamplingParams
from agentloop.engines.sglang.engine import SglangEngine, _sampling
from agentloop.episodes.setup import RolloutSetup
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.weights.shelf import WeightShelf
from benchmarks import results_file
from benchmarks.learner.qwen3 import random_model
from benchmarks.rollout.in_flight import played, window

ANSWER = 28
"""Tokens of an answer of `Replies`."""
_REPLIES = Path(__file__).parent / "replies.py"
_numbers = itertools.count()


class EndingEngine(SglangEngine):
    """Engine wrapper that reports cut turns as ended, because random weights never end a turn."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        return replace(await super().generate(*args, **kwargs), finish_reason=FinishReason.STOP)

    async def post(self, request: dict[str, Any]) -> list[int]:
        """Send one request to the server, without the adapter."""
        response = await self._client._http.post("/generate", json=request)
        return list(response.json()["output_ids"])


def workers_of(engine: SglangEngine, folder: Path, args: argparse.Namespace, turns: int) -> LocalWorkers:
    rows = f"{{num_rows: {args.rows}, num_words: [{args.prompt_words}]}}"
    path = folder / "run.yaml"
    path.write_text(
        f"model: {folder}\ndata: {{train: '{_REPLIES}:questions', train_options: {rows}}}\n"
        "engine: {name: sglang}\nlearner: {}\n"
    )
    settings = [
        f"limits={{max_turns: {turns}, max_turn_tokens: {args.sampled // turns}, max_tokens: {args.longest}}}",
        f"env={{factory: '{_REPLIES}:Replies', options: {{turns: {turns}}}}}",
        f"engine.max_concurrency={args.in_flight}",
    ]
    return LocalWorkers(RolloutSetup.load(load_config(RunConfig, path, settings), folder), engine)


async def bare(engine: EndingEngine, prompts: list[list[int]], args: argparse.Namespace, turns: int) -> int:
    """Return the tokens sampled in one request per episode or several, each with the tokens sampled before."""
    sampling = _sampling(SamplingParams(max_tokens=args.sampled // turns), args.sampled // turns)

    async def one(prompt: list[int]) -> int:
        sampled, salt = 0, f"bare-{next(_numbers)}"
        for _ in range(turns):
            request = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "extra_key": salt}
            ids = await engine.post(request)
            sampled += len(ids)
            prompt = [*prompt, *ids, *range(ANSWER)]
        return sampled

    return sum(await window([lambda prompt=prompt: one(prompt) for prompt in prompts], args.in_flight))


async def throughput(engine: EndingEngine, folder: Path, args: argparse.Namespace) -> AsyncIterator[dict[str, Any]]:
    """Yield the results so far after each round."""
    loops = {turns: workers_of(engine, folder, args, turns) for turns in args.turns}
    episodes = loops[args.turns[0]].episodes
    count = args.in_flight * args.waves
    first = itertools.count(0, count)
    found: dict[str, list[float]] = {}

    async def measure(name: str, turns: int, *, keep: bool = True) -> None:
        at = next(first)
        rows = range(at, at + count)
        prompts = [episodes.renderer.render_prompt(episodes.train[row]["messages"], ()) for row in rows]
        engine._updates += 1  # drop the cache of older prompts
        started = time.perf_counter()
        is_bare = name.startswith("bare")
        sampled = await (bare(engine, prompts, args, turns) if is_bare else played(loops[turns], rows, args.in_flight))
        rate = sampled / (time.perf_counter() - started)
        print(name, round(rate), "tokens/s", flush=True)
        if keep:
            found.setdefault(name, []).append(rate)

    names = {
        f"{what}{'' if turns == 1 else f'_of_{turns}_turns'}": turns
        for turns in args.turns
        for what in ("bare", "loops")
    }
    await measure("bare", args.turns[0], keep=False)
    for _ in range(args.repeats):
        for name, turns in names.items():
            await measure(name, turns)
        yield summary(found)


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians, and ratios of consecutive measurements."""
    result: dict[str, Any] = {
        name: {"tokens_per_second": statistics.median(rates), "all": rates} for name, rates in found.items()
    }
    for name, rates in found.items():
        if name.startswith("loops"):
            pairs = zip(rates, found[name.replace("loops", "bare")], strict=True)
            result[f"{name}_over_bare"] = statistics.median(mine / theirs for mine, theirs in pairs)
    return result


def parameters(folder: Path, device: str) -> dict[str, torch.Tensor]:
    """Return float32 parameters, those of the learner."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    return {name: torch.zeros(weight.shape, device=device) for name, weight in model.named_parameters()}


class Probe:
    """Stream one turn after another. A pause ends a turn, which continues afterwards as the engine's turns do."""

    def __init__(self, engine: EndingEngine, args: argparse.Namespace) -> None:
        self.times: list[float] = []
        self._engine = engine
        self._longest = args.longest

    async def run(self) -> None:
        tokens = [5] * 64
        while True:
            await self._engine._open.wait()
            tokens = tokens if len(tokens) < self._longest - 32 else [5 + next(_numbers) % 500] * 64
            with suppress(httpx.TransportError):
                tokens = [*tokens, *await self._stream(tokens)]

    async def _stream(self, tokens: list[int]) -> list[int]:
        sampling = _sampling(SamplingParams(max_tokens=self._longest), self._longest - 16 - len(tokens))
        request = {"input_ids": tokens, "sampling_params": sampling, "stream": True, "return_logprob": True}
        ids: list[int] = []
        async with self._engine._client._http.stream("POST", "/generate", json=request) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    got = json.loads(line.removeprefix("data: "))["output_ids"]
                    if len(got) > len(ids):
                        ids = list(got)
                        self.times.append(time.perf_counter())
        return ids

    def gap(self, start: float, end: float) -> float:
        """Return the longest gap between the last token before `start` and the first one after `end`."""
        first = max(t for t in self.times if t <= start)
        last = min(t for t in self.times if t >= end)
        times = [t for t in self.times if first <= t <= last]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


async def pauses(engine: EndingEngine, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    probe = Probe(engine, args)

    async def busy(number: int) -> None:
        for turn in itertools.count():
            params = SamplingParams(max_tokens=args.longest - 64)
            await engine.generate([(7 * number + turn) % 1000 + 1] * 64, params, trajectory_id=f"{number}-{turn}")

    tasks = [asyncio.create_task(probe.run()), *(asyncio.create_task(busy(number)) for number in range(args.busy))]
    weights = parameters(folder, "cuda" if torch.cuda.is_available() else "cpu")
    shelf = WeightShelf()
    found: list[dict[str, Any]] = []
    try:
        for version in range(1, args.updates + 2):
            count = len(probe.times)
            while len(probe.times) < count + 60:  # noqa: ASYNC110 (the server's tokens)
                await asyncio.sleep(0.01)
            steps = [later - earlier for earlier, later in itertools.pairwise(probe.times[-50:])]
            started = time.perf_counter()
            shared = await asyncio.to_thread(
                shelf.put, ((name, weight.to(torch.bfloat16)) for name, weight in weights.items())
            )
            filled = time.perf_counter()
            await engine.update_weights(shared, version)
            ended = time.perf_counter()
            while probe.times[-1] < ended:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            found.append(
                {
                    "fill_seconds": filled - started,
                    "update_seconds": ended - filled,
                    "pause_seconds": probe.gap(filled, ended),
                    "step_seconds": statistics.median(steps),
                    "loads_by": engine.loads_by,
                }
            )
            print(found[-1], flush=True)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    first, *rest = found
    median = {name: statistics.median(each[name] for each in rest) for name in first if name != "loads_by"}
    return {"bytes": shared.num_bytes, "first": first, "median": median, "all": rest}


async def measure(args: argparse.Namespace, folder: Path, write: Callable[[dict[str, Any]], None]) -> None:
    engine = EndingEngine(
        folder,
        max_model_len=args.longest,
        max_num_seqs=args.in_flight + 1,
        gpu_memory_utilization=args.memory,
        server_args=args.server_args,
    )
    started = time.perf_counter()
    await engine.start()
    result: dict[str, Any] = {"engine_start_seconds": time.perf_counter() - started}
    print(result, flush=True)
    try:
        result["pauses"] = await pauses(engine, folder, args)
        write(result)
        async for result["throughput"] in throughput(engine, folder, args):
            write(result)
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6B")
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--waves", type=int, default=2)
    parser.add_argument("--turns", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompt-words", type=int, default=160)
    parser.add_argument("--sampled", type=int, default=256)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--busy", type=int, default=64, help="turns in flight while weights are updated")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--memory", type=float, default=0.5)
    parser.add_argument("--server-args", type=json.loads, default={}, help="further options of SGLang, as JSON")
    parser.add_argument("--name", default="sglang_engine")
    args = parser.parse_args()
    settings = dict(vars(args))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    with tempfile.TemporaryDirectory() as scratch:
        folder = random_model(args.shape, Path(scratch))
        build_tokenizer().save_pretrained(folder)
        asyncio.run(
            measure(args, folder, lambda found: print(results_file.write(args.name, settings | found, gpu=gpu)))
        )


if __name__ == "__main__":
    main()
