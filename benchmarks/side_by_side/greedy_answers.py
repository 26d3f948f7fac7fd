"""Compare greedy answers of a trained model in the run's engine, in plain transformers and in `vllm serve`.

    python -m benchmarks.side_by_side.greedy_answers MODEL TASKS [--dtype bfloat16] [--tasks 64] [--engine vllm]

The first turn of each held-out task is sampled at temperature 0. Writes results/greedy_answers_DTYPE.json: how many
answers are equal token for token, and for each that is not, the difference of the two tokens' log-probabilities at the
first difference, by plain transformers in float32. A small difference is a tie that rounding decides. All programs
compute in `--dtype`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentloop import engines
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.tools.toolset import Toolset
from benchmarks import results_file
from benchmarks.vllm_server import vllm_server

RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2"
TOKENS = 96
TURN_END = "<|im_end|>"
"""Last token of a turn in the recipe's chat template."""


def prompts_of(model: str, tasks: Path, count: int) -> tuple[list[list[int]], int]:
    """Return the prompt ids of each task's first turn, and the id that ends a turn."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    schemas = Toolset([CodeInterpreter()]).schemas
    rows = [json.loads(line) for line in tasks.read_text().splitlines()][:count]
    template = (RECIPE / "chat_template.jinja").read_text()
    texts = [
        tokenizer.apply_chat_template(
            row["prompt"], tools=schemas, chat_template=template, add_generation_prompt=True, tokenize=False
        )
        for row in rows
    ]
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return prompts, tokenizer.convert_tokens_to_ids(TURN_END)


async def by_engine(name: str, model: str, prompts: list[list[int]], options: dict[str, Any]) -> list[list[int]]:
    """Sample with the engine of a run."""
    engine = engines.create(name, model=model, **options)
    greedy = engines.SamplingParams(max_tokens=TOKENS, temperature=0.0)
    await engine.start()
    try:
        done = await asyncio.gather(
            *(engine.generate(prompt, greedy, trajectory_id=str(i)) for i, prompt in enumerate(prompts))
        )
    finally:
        await engine.close()
    return [list(found.ids) for found in done]


def by_transformers(model: str, prompts: list[list[int]], dtype: str) -> list[list[int]]:
    """Sample with `generate` of plain transformers, one prompt at a time."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).to(device).eval()
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=device)
        with torch.no_grad():
            made = loaded.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, use_cache=True
            )
        answers.append(made[0, len(prompt) :].tolist())
    return answers


def by_serve(model: str, prompts: list[list[int]], dtype: str, memory: float) -> list[list[int]]:
    """Sample with `vllm serve` in a process of its own."""
    options = {"dtype": dtype, "max_model_len": 1024, "enforce_eager": True, "gpu_memory_utilization": memory}
    if torch.cuda.is_available():
        options["kv_cache_memory_bytes"] = 4 << 30  # vLLM does not measure free memory, so others may use the GPU
    answers = []
    with tempfile.TemporaryDirectory() as folder, vllm_server(model, options, Path(folder) / "serve.log") as client:
        for prompt in prompts:
            body = {
                "model": model,
                "prompt": prompt,
                "max_tokens": TOKENS,
                "temperature": 0.0,
                "return_token_ids": True,
            }
            found = client.post("/v1/completions", json=body).raise_for_status().json()
            answers.append(found["choices"][0]["token_ids"])
    return answers


def margins(model: str, prompts: list[list[int]], one: list[list[int]], other: list[list[int]]) -> list[float]:
    """Return the difference of log-probabilities at the first token that differs, for each unequal pair."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device).eval()
    found = []
    for prompt, first, second in zip(prompts, one, other, strict=True):
        if first == second:
            continue
        # There is one: both end with the token that ends a turn, or have `TOKENS`.
        place = next(i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
        with torch.no_grad():
            logits = loaded(torch.tensor([prompt + first[:place]], device=device)).logits[0, -1]
        scores = torch.log_softmax(logits.float(), -1)
        found.append(round(abs(float(scores[first[place]] - scores[second[place]])), 5))
    return found


def ended(answers: list[list[int]], eos: int) -> list[list[int]]:
    """Cut answers after the token that ends a turn; add it to those of programs that leave it out."""
    cut = [answer[: answer.index(eos)] if eos in answer else answer for answer in answers]
    return [[*answer, eos][:TOKENS] for answer in cut]


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tasks", type=int, default=64, dest="count")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--options", type=json.loads, default={}, help="further options of the engine, as JSON")
    parser.add_argument("--memory", type=float, default=0.3)
    parser.add_argument("--no-serve", action="store_true")
    args = parser.parse_args()
    prompts, eos = prompts_of(args.model, args.tasks, args.count)
    options = {"dtype": args.dtype, **args.options}
    answers = {"engine": asyncio.run(by_engine(args.engine, args.model, prompts, options))}
    answers["transformers"] = by_transformers(args.model, prompts, args.dtype)
    if not args.no_serve:
        answers["vllm serve"] = by_serve(args.model, prompts, args.dtype, args.memory)
    answers = {name: ended(found, eos) for name, found in answers.items()}
    result: dict[str, Any] = {"answers": len(prompts)}
    for name in list(answers)[1:]:
        differ = margins(args.model, prompts, answers["engine"], answers[name])
        result[f"engine and {name}"] = {"equal": len(prompts) - len(differ), "margins_of_others": differ}
    print(json.dumps(result, indent=1))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    print(results_file.write(f"greedy_answers_{args.dtype}", result, gpu=gpu))


if __name__ == "__main__":
    main()
