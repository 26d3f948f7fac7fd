"""Compare adapters that are published merged into all weights with adapters that are published alone.

    python -m benchmarks.weights.adapters [--hidden 512 --layers 12 --rank 32 --updates 5]

A learner of random weights (Qwen3 shape, float32 on CPUs, bfloat16 on GPUs) publishes to vLLM, which has requests in
flight. For each way: bytes of an update, seconds of an update (fill, map, pause and load), sampled tokens a second
between the updates, and the largest difference of one log-probability to the learner's after the last update.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import SamplingParams
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from benchmarks import results_file

CUDA = torch.cuda.is_available()
DTYPE = "bfloat16" if CUDA else "float32"
VOCABULARY, CONTEXT, IN_FLIGHT, TURN = 32_000, 1024, 16, 64
PROMPT = list(range(100, 132))


def make_model(folder: Path, hidden: int, layers: int) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "head_dim": 64}
    heads = {"num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 128, "vocab_size": VOCABULARY}
    config = Qwen3Config(**sizes, **heads, max_position_embeddings=CONTEXT, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).to(getattr(torch, DTYPE)).save_pretrained(folder)
    return folder


def sample_of(ids: list[int]) -> Sample:
    """Return a trajectory of the prompt and sampled ids, to be scored or trained."""
    mask = np.arange(len(PROMPT) + len(ids)) >= len(PROMPT)
    zeros = np.zeros(len(mask), np.float32)
    return Sample(np.array([*PROMPT, *ids], np.int32), mask, zeros, zeros.astype(np.int32))


async def measure(model: Path, publish: str, rank: int, updates: int) -> dict[str, Any]:
    lora = {"rank": rank, "alpha": 2 * rank, "publish": publish}
    settings: dict[str, Any] = {"lora": lora, "lr": 1e-3, "compute_dtype": DTYPE, "compile_layers": False}
    learner = FsdpLearner(LearnerConfig(model=str(model), **settings))
    options = {"adapters": rank} if publish == "adapters" else {}
    engine = VllmEngine(
        model, dtype=DTYPE, max_model_len=CONTEXT, max_num_seqs=IN_FLIGHT, gpu_memory_utilization=0.4, **options
    )
    await engine.start()
    try:
        return await _updates(learner, engine, updates)
    finally:
        await engine.close()


async def _updates(learner: FsdpLearner, engine: VllmEngine, updates: int) -> dict[str, Any]:
    async def play(number: int, tokens: int = TURN) -> int:
        turn = await engine.generate(PROMPT, SamplingParams(max_tokens=tokens), trajectory_id=f"{number}")
        return len(turn.ids)

    seconds, rates = [], []
    for version in range(1, updates + 1):
        started = time.perf_counter()
        sampled = sum(await asyncio.gather(*map(play, range(IN_FLIGHT))))
        rates.append(sampled / (time.perf_counter() - started))
        learner.step(TrainBatch([sample_of(list(range(200 + version, 264 + version)))]))
        in_flight = [asyncio.create_task(play(number)) for number in range(IN_FLIGHT - 1)]
        await play(IN_FLIGHT, tokens=4)
        started = time.perf_counter()
        await learner.publish(engine, version)
        seconds.append(time.perf_counter() - started)
        await asyncio.gather(*in_flight)
    turn = await engine.generate(PROMPT, SamplingParams(max_tokens=TURN), trajectory_id="last")
    (logprobs,) = learner.logprobs([sample_of(list(turn.ids))])
    return {
        "bytes": sum(weight.numel() * weight.element_size() for _, weight in learner.weights()),
        "update_seconds": round(statistics.median(seconds[1:]), 4),
        "first_update_seconds": round(seconds[0], 4),
        "tokens_per_second": round(statistics.median(rates)),
        "largest_logprob_difference": float(np.abs(logprobs - np.array(turn.logprobs)).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 512), ("layers", 12), ("rank", 32), ("updates", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    if args.updates < 2:
        parser.error("--updates must be at least 2: the first is reported on its own")
    results: dict[str, Any] = dict(vars(args))
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), args.hidden, args.layers)
        for publish in ("merged", "adapters"):
            results[publish] = asyncio.run(measure(model, publish, args.rank, args.updates))
            print(publish, results[publish], flush=True)
    gpu = torch.cuda.get_device_name() if CUDA else None
    print(results_file.write("adapters_cuda" if CUDA else "adapters_cpu", results, gpu=gpu))


if __name__ == "__main__":
    main()
