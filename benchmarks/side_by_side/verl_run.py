"""Train the sums of `benchmarks.side_by_side.data` with verl's GRPO and vLLM, and write its curve.

    python -m benchmarks.side_by_side.verl_run MODEL DATA CURVE [--steps 60] [--seed 0]

MODEL is the folder of the cold start, DATA has train.jsonl and held_out.jsonl. CURVE gets the lines that
`agentloop_run` describes. verl 0.9.1 runs with PyTorch's attention over padded rows; from flash-attn it needs only the
two files without compiled code, `bert_padding.py` and `ops/triton/cross_entropy.py` (without the latter it computes the
loss row by row). Its `main_ppo` with `use_v1=False` needs no TransferQueue.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agentloop.envs.rewards.texts import inside

RESPONSE = 32
PROMPT = 96


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """Return what our reward `exact` with the tag `answer` returns. verl calls it."""
    found = inside(solution_str, "answer")
    return float(bool(found) and found[-1] == ground_truth.strip())


def write_rows(tasks: Path, path: Path) -> Path:
    """Write tasks in the format of verl."""
    import pandas

    rows = [json.loads(line) for line in tasks.read_text().splitlines()]
    pandas.DataFrame(
        {
            "data_source": "sums",
            "prompt": row["prompt"],
            "reward_model": {"style": "rule", "ground_truth": row["answer"]},
            "extra_info": {"index": index},
        }
        for index, row in enumerate(rows)
    ).to_parquet(path)
    return path


def overrides(args: argparse.Namespace, train: Path, held_out: Path) -> list[str]:
    """Return verl's settings: those of sums.yaml and of `trl_run`, under its own names."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        "algorithm.adv_estimator=grpo",
        "algorithm.use_kl_in_reward=False",
        f"data.train_files={train}",
        f"data.val_files={held_out}",
        f"data.train_batch_size={args.groups}",
        f"data.max_prompt_length={PROMPT}",
        f"data.max_response_length={RESPONSE}",
        f"data.seed={args.seed}",
        "data.dataloader_num_workers=0",
        f"actor_rollout_ref.model.path={args.model}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=False",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"{actor}.optim.lr={args.lr}",
        f"{actor}.optim.lr_scheduler_type=cosine",
        f"{actor}.optim.lr_warmup_steps={args.warmup}",
        f"{actor}.optim.weight_decay=0.0",
        f"{actor}.ppo_mini_batch_size={args.groups}",
        f"{actor}.ppo_micro_batch_size_per_gpu={args.micro_batch}",
        f"{actor}.use_kl_loss=False",
        f"{rollout}.name=vllm",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.gpu_memory_utilization={args.memory}",
        f"{rollout}.max_model_len=256",
        f"{rollout}.max_num_seqs=512",
        f"{rollout}.n=8",
        f"{rollout}.seed={args.seed}",
        f"{rollout}.log_prob_micro_batch_size_per_gpu={args.micro_batch}",
        f"{rollout}.val_kwargs.do_sample=True",
        f"{rollout}.val_kwargs.temperature=1.0",
        f"reward.custom_reward_function.path={Path(__file__).absolute()}",
        "reward.custom_reward_function.name=score",
        "trainer.use_v1=False",
        "trainer.n_gpus_per_node=1",
        f"trainer.total_training_steps={args.steps}",
        f"trainer.test_freq={args.eval_every}",
        "trainer.save_freq=-1",
        "trainer.logger=[console,file]",
        f"trainer.default_local_dir={args.curve.absolute().with_suffix('')}",
    ]


def curve_of(log: Path) -> list[dict[str, float]]:
    """Read the file that verl's logger `file` writes. Its seconds of a step do not have the evaluation after it."""
    lines, seconds = [], 0.0
    for text in log.read_text().splitlines():
        found = json.loads(text)
        data = found["data"]
        seconds += data.get("timing_s/step", 0.0)
        line = {"step": found["step"], "seconds": round(seconds, 3)}
        if "critic/score/mean" in data:
            line["reward"] = data["critic/score/mean"]
        for name in data:
            if name.endswith("reward/mean@1"):
                line["eval_reward"] = data[name]
        lines.append(line)
    return lines


def main() -> None:
    """Train."""
    # Not above: verl's workers load this file for `score`, and need not find the package `benchmarks`.
    from benchmarks.side_by_side.agentloop_run import check_installed, parser_of

    parser = parser_of(__doc__, "data", "curve")
    parser.add_argument("--micro-batch", type=int, default=128, help="episodes of a forward pass")
    parser.add_argument("--memory", type=float, default=0.3, help="share of the GPU for vLLM")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    args = parser.parse_args()
    check_installed(parser, "verl", "0.9.1")
    folder = args.curve.absolute().with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    train = write_rows(args.data / "train.jsonl", folder / "train.parquet")
    held_out = write_rows(args.data / "held_out.jsonl", folder / "held_out.parquet")
    log = folder / "log.jsonl"
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "verl.trainer.main_ppo", *overrides(args, train, held_out), *args.overrides],
        check=True,
        env=os.environ | {"VERL_FILE_LOGGER_PATH": str(log)},
    )
    seconds = time.perf_counter() - start
    data = [json.loads(text)["data"] for text in log.read_text().splitlines()]
    evaluations = sum(line.get("timing_s/testing", 0.0) for line in data)
    lines = [*curve_of(log), {"process_seconds": round(seconds, 1), "evaluation_seconds": round(evaluations, 1)}]
    args.curve.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
