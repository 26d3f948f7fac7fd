"""Speed of a training step on one CUDA GPU: tokens a second and MFU, at Qwen3 shapes with random weights.

    python benchmarks/train_step.py --model 0.6B --trained 0.25 [--token-budget 32768 --checkpointing off ...]

A step is everything from a batch of trajectories to changed weights: planning, packing, forward, backward, clipping,
optimizer. Lengths are lognormal, the trained tokens of a sequence its last ones. MFU counts what the step needs, and
nothing computed twice: 6 FLOPs a parameter of the layers and token, causal attention, the LM head at trained tokens.
`mfu_full_head` counts the head at all tokens, as most published figures do. Peak: 989 TFLOP/s, dense bfloat16.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import results_file
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentloop.trainer.backends.fsdp import FsdpLearner
from agentloop.trainer.batch import Sample, TrainBatch
from agentloop.trainer.learner import LearnerConfig

PEAK = 989e12
VOCAB = 151_936
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}


def model_config(name: str) -> Qwen3Config:
    small = (
        {"num_key_value_heads": 2, "head_dim": 16} if name == "tiny" else {"num_key_value_heads": 8, "head_dim": 128}
    )
    return Qwen3Config(
        **SHAPES[name],
        **small,
        vocab_size=VOCAB,
        max_position_embeddings=40960,
        rope_theta=1e6,
        tie_word_embeddings=True,
    )


def random_model(name: str, folder: Path) -> Path:
    """A model folder, written once."""
    path = folder / f"qwen3-{name}-random"
    if not path.exists():
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = Qwen3ForCausalLM(model_config(name)).to(torch.bfloat16)
        model.save_pretrained(path)
        del model
    return path


def lengths_of(tokens: int, median: float, sigma: float, cap: int, seed: int = 0) -> list[int]:
    """Lognormal lengths that add up to `tokens`."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(np.clip(rng.lognormal(np.log(median), sigma), 32, cap)))
    lengths[-1] -= sum(lengths) - tokens
    return [length for length in lengths if length >= 8]


def batch_of(lengths: list[int], trained: float, seed: int = 0) -> TrainBatch:
    rng = np.random.default_rng(seed)
    samples = []
    for length in lengths:
        mask = np.arange(length) >= max(1, round(length * (1 - trained)))
        samples.append(
            Sample(
                token_ids=rng.integers(0, VOCAB, length).astype(np.int32),
                loss_mask=mask,
                logprobs=np.where(mask, rng.normal(-12.0, 0.1, length), 0).astype(np.float32),
                versions=np.where(mask, 0, -1).astype(np.int32),
                advantage=float(rng.normal()),
            )
        )
    return TrainBatch(samples)


def flops(config: Qwen3Config, lengths: list[int], head_tokens: int) -> float:
    """Of forward and backward."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    attention = config.hidden_size * config.head_dim * (2 * heads + 2 * kv_heads)
    layers = config.num_hidden_layers * (attention + 3 * config.hidden_size * config.intermediate_size)
    pairs = config.num_hidden_layers * heads * config.head_dim * sum(length**2 for length in lengths)
    return 6.0 * (layers * sum(lengths) + pairs + config.hidden_size * VOCAB * head_tokens)


def measure(learner: FsdpLearner, batch: TrainBatch, steps: int) -> dict[str, Any]:
    """Median seconds of `steps` after two that warm up (the first compiles)."""
    seconds, last = [], {}
    for number in range(steps + 2):
        if number == 2:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        last = learner.step(batch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    phases = {name: value for name, value in last.items() if name.startswith("seconds/")}
    return {
        "first_step_seconds": seconds[0],
        "step_seconds": sorted(seconds[2:])[steps // 2],
        "all_seconds": seconds,
        "last_phases": phases,
        "loss": last["loss"],
        "grad_norm": last["grad_norm"],
        "computed_tokens": last["computed_tokens"],
        "memory_peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="0.6B")
    parser.add_argument("--trained", type=float, default=0.25, help="part of the tokens that carries loss")
    parser.add_argument("--tokens", type=int, default=131072, help="of a step")
    parser.add_argument("--median", type=float, default=2000)
    parser.add_argument("--sigma", type=float, default=0.8)
    parser.add_argument("--cap", type=int, default=8192)
    parser.add_argument("--token-budget", type=int, default=32768)
    parser.add_argument("--checkpointing", default="off")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--offload", default="off")
    parser.add_argument("--compare-sharded", action="store_true", help="also through FSDP2 on this one rank")
    parser.add_argument("--profile", type=Path, help="write a table of kernels of one more step here")
    return parser.parse_args()


def learner_config(args: argparse.Namespace, **options: Any) -> LearnerConfig:
    return LearnerConfig(
        model=str(random_model(args.model, args.folder)),
        compute_dtype="bfloat16",
        token_budget=args.token_budget,
        checkpointing=args.checkpointing,
        attention=args.attention,
        compile_layers=False if args.no_compile else None,
        offload=args.offload,
        **options,
    )


def main() -> None:
    args = parse()
    config = model_config(args.model)
    lengths = lengths_of(args.tokens, args.median, args.sigma, args.cap)
    batch = batch_of(lengths, args.trained)
    learner = FsdpLearner(learner_config(args))
    found = measure(learner, batch, args.steps)
    seconds = found["step_seconds"]
    result = {
        "model": args.model,
        "options": {key: str(value) for key, value in vars(args).items()},
        "sequences": len(lengths),
        "tokens": batch.num_tokens,
        "trained_tokens": batch.num_sampled,
        "longest": max(lengths),
        "tokens_per_second": batch.num_tokens / seconds,
        "mfu": flops(config, lengths, batch.num_sampled) / seconds / PEAK,
        "mfu_full_head": flops(config, lengths, batch.num_tokens) / seconds / PEAK,
        **found,
    }
    if args.profile:
        profile(learner, batch, args.profile)
    if args.compare_sharded:
        del learner
        torch.cuda.empty_cache()
        sharded = measure(FsdpLearner(learner_config(args, gather_once=False)), batch, args.steps)
        result["sharded"] = sharded
        result["times_as_fast_as_sharded"] = sharded["step_seconds"] / seconds
    print(json.dumps({key: value for key, value in result.items() if key != "options"}))
    name = f"train_step_{args.model}_{round(args.trained * 100)}"
    if args.offload != "off":
        name += f"_offload_{args.offload}"
    print(results_file.write(name, result, gpu=torch.cuda.get_device_name()))


def profile(learner: FsdpLearner, batch: TrainBatch, path: Path) -> None:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        learner.step(batch)
    path.write_text(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=90))


if __name__ == "__main__":
    main()
