"""Find where the log-probabilities of engine and learner differ: dtype, head, attention, compilation, prefix cache.

    python -m benchmarks.rollout.logprob_gap --model FOLDER --variants plain float16 eager triton no_prefix_cache
    python -m benchmarks.rollout.logprob_gap --model FOLDER --variants plain fp8 --learner-fp8 off tensor row

The engine answers questions with a model of real weights (random ones hide the gap, because their logits are small).
The learner scores the same tokens in the same dtype, and transformers does so in float32. The engine's logits are
rounded to that dtype or stay float32, in turns on one engine, so that their speeds compare. A variant is an engine with
other settings. benchmarks.rollout.rounding measures the effect of rounding each operation.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentloop import engines
from agentloop.config.learner import LearnerConfig
from agentloop.engines import Generation, SamplingParams
from agentloop.engines.vllm.head import keep_logits_float32
from agentloop.engines.vllm.worker import WeightReceiver
from agentloop.trainer.batch.making import Sample, make_batch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.types.trajectory import SegmentKind, Trajectory
from benchmarks import results_file

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "eager": {"enforce_eager": True},
    "triton": {"attention_backend": "TRITON_ATTN"},
    "no_prefix_cache": {"enable_prefix_caching": False},
    "float16": {"dtype": "float16"},
    "fp8": {"quantization": "fp8"},
}
QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Explain to a child why the sky is blue.",
    "A train travels 120 km in 1.5 hours. How fast is it? Explain each step.",
    "Write a Python function that reverses the words of a sentence.",
    "List five uses of a paper clip and explain each in one sentence.",
    "Summarize how photosynthesis works.",
    "Translate 'good morning, my friend' into French, Spanish and German.",
)
Head = str
"""`rounded` or `float32`."""


class SwitchedHead(WeightReceiver):
    """Worker of vLLM whose logits can be rounded again."""

    def rounded_logits(self) -> None:
        for layer in self.get_model().modules():
            method = getattr(layer, "quant_method", None)
            if method is not None and "apply" in vars(method):
                del method.apply

    def float32_logits(self) -> None:
        keep_logits_float32(self.get_model())


async def _switch(engine: Any, head: Head) -> None:
    method = "rounded_logits" if head == "rounded" else "float32_logits"
    await engine.llm.collective_rpc(method)


async def _sample(engine: Any, prompts: list[list[int]], new_tokens: int, wave: str) -> tuple[list[Generation], float]:
    started = time.perf_counter()
    turns = await asyncio.gather(
        *(
            engine.generate(prompt, SamplingParams(max_tokens=new_tokens, seed=None), trajectory_id=f"{wave}-{index}")
            for index, prompt in enumerate(prompts)
        )
    )
    return turns, sum(len(turn.ids) for turn in turns) / (time.perf_counter() - started)


def _samples(prompts: list[list[int]], turns: list[Generation]) -> list[Sample]:
    group = []
    for prompt, turn in zip(prompts, turns, strict=True):
        trajectory = Trajectory(reward=0.0)
        trajectory.append(SegmentKind.PROMPT, prompt)
        trajectory.append(SegmentKind.SAMPLED, turn.ids, logprobs=turn.logprobs, versions=turn.versions)
        group.append(trajectory)
    return make_batch([group]).samples


def _gap(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    error = np.abs(ours - theirs)
    return {"mean": float(error.mean()), "p99": float(np.quantile(error, 0.99)), "max": float(error.max())}


@torch.no_grad()
def _exact(folder: Path, prompts: list[list[int]], turns: list[Generation], device: str) -> np.ndarray:
    """Return the log-probabilities by transformers in float32 (`matmul` without TF32)."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    found = []
    for prompt, turn in zip(prompts, turns, strict=True):
        ids = torch.tensor([[*prompt, *turn.ids]], device=device)
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        picked = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])
        found.append(picked[:, 0].float().cpu().numpy())
    return np.concatenate(found)


async def _measure(args: argparse.Namespace, settings: dict[str, Any], device: str) -> dict[str, Any]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    prompts: list[list[int]] = []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        prompts += [list(ids)] * (args.requests // len(QUESTIONS))
    longest = max(map(len, prompts)) + args.new_tokens
    options: dict[str, Any] = {
        "dtype": args.dtype,
        "max_model_len": longest,
        "gpu_memory_utilization": 0.4,
        # Without a size vLLM measures free memory, and ends if another program frees some meanwhile.
        **({"kv_cache_memory_bytes": 4 << 30} if device == "cuda" else {}),
        "worker_extension_cls": "benchmarks.rollout.logprob_gap.SwitchedHead",
        **settings,
    }
    engine = engines.create("vllm", model=args.model, **options)
    await engine.start()
    config = LearnerConfig(model=str(args.model), compute_dtype=options["dtype"], attention=args.attention)
    learners = {fp8: FsdpLearner(config.replace(fp8=fp8)) for fp8 in args.learner_fp8}
    await _sample(engine, prompts, 16, "warm-up")
    result: dict[str, Any] = {}
    for head in ("rounded", "float32"):
        await _switch(engine, head)
        turns, _ = await _sample(engine, prompts, args.new_tokens, head)
        samples = _samples(prompts, turns)
        theirs = np.concatenate([sample.logprobs[sample.loss_mask] for sample in samples])
        exact = _exact(args.model, prompts, turns, device)
        found: dict[str, Any] = {"tokens": len(theirs), "mean_logprob": float(theirs.mean())}
        found["engine_and_exact"] = _gap(theirs, exact)
        for fp8, learner in learners.items():
            ours, name = np.concatenate(learner.logprobs(samples)), "learner" if fp8 == "off" else f"learner_fp8_{fp8}"
            found |= {f"{name}_and_engine": _gap(ours, theirs), f"{name}_and_exact": _gap(ours, exact)}
        result[f"engine_{head}"] = found
    speeds: dict[Head, list[float]] = {"rounded": [], "float32": []}
    for repeat in range(2 * args.repeats):
        head = ("rounded", "float32", "float32", "rounded")[repeat % 4]
        await _switch(engine, head)
        _, speed = await _sample(engine, prompts * args.load, args.new_tokens, f"speed-{repeat}")
        speeds[head].append(speed)
    result["tokens_per_second"] = speeds
    if args.repeats:
        medians = {head: statistics.median(found) for head, found in speeds.items()}
        result["speed_of_float32"] = medians["float32"] / medians["rounded"]
    await engine.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["plain"])
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--attention", default="auto", help="of the learner")
    parser.add_argument("--learner-fp8", nargs="+", default=["off"], help="values of learner.fp8 to compare")
    parser.add_argument("--requests", type=int, default=64, help=f"a multiple of {len(QUESTIONS)}")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=0, help="of the measurement of speed, an even number")
    parser.add_argument("--load", type=int, default=1, help="requests of that measurement, in multiples of --requests")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    result: dict[str, Any] = {"model": args.model.name}
    for variant in args.variants:
        result[variant] = asyncio.run(_measure(args, VARIANTS[variant], device))
        path = results_file.write(f"logprob_gap_{args.model.name}_{args.dtype}_{device}", result, gpu=gpu)
    print(path.read_text())


if __name__ == "__main__":
    main()
