"""Calibrate time estimates with the metrics of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

from agentloop.errors import UserError
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.search import Cluster, PlannedRun
from agentloop.trainer.sizing.step_time import training_seconds

_WARM_UP = 2
"""Number of initial steps to skip, because they compile and fill caches."""


def scale_from_metrics(path: Path, run: PlannedRun, cluster: Cluster, layout: Layout) -> float:
    """Return the ratio of measured to estimated training seconds, the median over the steps after the first two.

    `path` is the metrics.jsonl of a run, with trained tokens and computed tokens per second. Raises `UserError` if it
    has too few steps.
    """
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read {path} as metrics: {error}. Pass the metrics.jsonl of a run.") from error
    steps = [line for line in lines if _get(line, "tokens_per_second") and _get(line, "computed_tokens")]
    if len(steps) <= _WARM_UP:
        raise UserError(
            f"{path} has {len(steps)} steps of training, but the speed is measured after the first {_WARM_UP}. "
            "Run a few more steps."
        )
    return median(_ratio(step, run, cluster, layout) for step in steps[_WARM_UP:])


def _get(line: dict[str, float], name: str) -> float:
    return next((value for prefix in ("", "learner/", "time/") if (value := line.get(prefix + name))), 0.0)


def _ratio(step: dict[str, float], run: PlannedRun, cluster: Cluster, layout: Layout) -> float:
    tokens = _get(step, "computed_tokens")
    trajectories = int(_get(step, "num_trajectories")) or run.work.trajectories
    sampled = _get(step, "num_sampled") / (_get(step, "num_tokens") or 1.0)
    work = replace(
        run.work,
        trajectories=trajectories,
        mean_tokens=tokens / trajectories,
        trained=sampled or run.work.trained,
    )
    expected = training_seconds(
        run.shape, run.flops, layout, work, cluster.gpu, cluster.gpus_per_node, lora_rank=run.lora_rank, fp8=run.fp8
    )
    return tokens / _get(step, "tokens_per_second") / expected
