"""Train the recipe `smollm2` with TRL's GRPOTrainer and vLLM, and write its curve.

    python -m benchmarks.side_by_side.trl_run MODEL DATA CURVE [--steps 60] [--seed 0] [--single-turn]
        [--engine vllm|transformers]

MODEL is the folder of the cold start. DATA has train.jsonl and held_out.jsonl, made by
`agentloop.recipes.smollm2.prepare` or `benchmarks.side_by_side.data`. TRL uses our code interpreter, its sandbox, and
our comparison of answers; with `--single-turn` no tool. CURVE gets the lines that `agentloop_run` describes.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from agentloop.envs.rewards.texts import inside
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall
from benchmarks.side_by_side.agentloop_run import check_installed, parser_of

RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2"


class Interpreter:
    """Our code interpreter as the asynchronous function that TRL calls."""

    def __init__(self) -> None:
        self.toolset = Toolset([CodeInterpreter()])
        self._start: asyncio.Task[None] | None = None
        self.__name__ = "code_interpreter"

    async def call(self, code: str) -> str:
        """Run code in a sandbox and return what it prints."""
        if self._start is None:
            self._start = asyncio.create_task(self.toolset.start())
        await self._start
        sessions = self.toolset.sessions("trl", task={}, seed=0, images=[])
        try:
            deadline = time.monotonic() + self.toolset.tools["code_interpreter"].timeout
            result = await sessions.call(ToolCall("code_interpreter", {"code": code}, "call_0"), deadline)
        finally:
            await sessions.close()
        return str(result.content)


def interpreter_of(tool: Interpreter) -> Any:
    """Return the function whose signature and docstring TRL shows to the model."""

    async def code_interpreter(code: str) -> str:
        return await tool.call(code)

    description = tool.toolset.schemas[0]["function"]["description"].split(". ")[0]
    code_interpreter.__doc__ = f"{description}.\n\nArgs:\n    code: The program.\n"
    return code_interpreter


def reward(completions: list[Any], answer: list[Any], **_: Any) -> list[float]:
    """Return what our reward `exact` with the tag `answer` returns."""
    values = []
    for completion, wanted in zip(completions, answer, strict=True):
        last = completion[-1]
        found = inside(last.get("content") or "", "answer") if last["role"] == "assistant" else []
        values.append(float(bool(found) and found[-1] == str(wanted).strip()))
    return values


def rows(path: Path) -> Dataset:
    """Read tasks in the format of TRL."""
    tasks = [json.loads(line) for line in path.read_text().splitlines()]
    return Dataset.from_list([{"prompt": task["prompt"], "answer": str(task["answer"])} for task in tasks])


class Curve(TrainerCallback):
    """Write a line for each step, with the seconds of training so far, without those of evaluations."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._began = self._seconds = self.evaluating = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter() - self.evaluating

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        found = {key: (logs or {})[key] for key in ("reward", "eval_reward") if key in (logs or {})}
        if "reward" in found:
            self._seconds = time.perf_counter() - self._began - self.evaluating
        if found:
            self.write({"step": state.global_step, "seconds": round(self._seconds, 3)} | found)

    def write(self, line: dict[str, float]) -> None:
        """Append a line."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def main() -> None:
    """Train."""
    parser = parser_of(__doc__, "data", "curve")
    parser.add_argument("--single-turn", action="store_true")
    parser.add_argument("--completion", type=int, default=640, help="tokens after the prompt, tool results included")
    parser.add_argument("--context", type=int, default=1024, help="tokens that vLLM allows")
    parser.add_argument("--micro-batch", type=int, default=64, help="episodes of a forward pass")
    parser.add_argument("--eval-limit", type=int)
    parser.add_argument("--memory", type=float, default=0.4, help="share of the GPU for vLLM")
    parser.add_argument("--engine", choices=("vllm", "transformers"), default="vllm")
    args = parser.parse_args()
    if args.groups * 8 % args.micro_batch:
        parser.error(f"--micro-batch {args.micro_batch} does not divide the {args.groups * 8} episodes of a step")
    check_installed(parser, "trl", "1.16.0")
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.chat_template = (RECIPE / "chat_template.jinja").read_text()
    tokenizer.response_template = qwen3_template  # calls as JSON in <tool_call> tags, as the recipe writes them
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    held_out = rows(args.data / "held_out.jsonl")
    episodes = args.groups * 8
    config = GRPOConfig(
        output_dir=str(args.curve.with_suffix("")),
        max_steps=args.steps,
        seed=args.seed,
        learning_rate=args.lr,
        lr_scheduler_type="cosine",
        warmup_steps=args.warmup,
        weight_decay=0.0,
        max_grad_norm=1.0,
        bf16=torch.cuda.is_available(),
        gradient_checkpointing=False,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=episodes // args.micro_batch,
        steps_per_generation=episodes // args.micro_batch,
        per_device_eval_batch_size=256,
        num_generations=8,
        num_generations_eval=1,
        max_completion_length=args.completion,
        max_tool_calling_iterations=None if args.single_turn else 3,
        temperature=1.0,
        use_vllm=args.engine == "vllm",
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=args.memory,
        vllm_max_model_length=args.context,
        beta=0.0,
        loss_type="dapo",
        eval_strategy="steps",
        eval_steps=args.eval_every,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    curve = Curve(args.curve)
    began = time.perf_counter()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=rows(args.data / "train.jsonl"),
        eval_dataset=held_out if args.eval_limit is None else held_out.select(range(args.eval_limit)),
        processing_class=tokenizer,
        tools=None if args.single_turn else [interpreter_of(Interpreter())],
        callbacks=[curve],
    )
    evaluate = trainer.evaluate

    def timed(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return evaluate(*given, **named)
        finally:
            curve.evaluating += time.perf_counter() - start

    trainer.evaluate = timed
    print(f"loaded in {time.perf_counter() - began:.1f} s", flush=True)
    trainer.evaluate()
    trainer.train()
    seconds = time.time() - psutil.Process().create_time()
    curve.write({"process_seconds": round(seconds, 1), "evaluation_seconds": round(curve.evaluating, 1)})
    print(f"ended after {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
