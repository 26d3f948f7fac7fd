"""Draw random settings from the schema of the config, so that new options are included automatically."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from agentloop.config.run import RunConfig
from agentloop.trainer import advantages, corrections, losses

TASKS = Path(__file__).with_name("fuzz_tasks.py")

MOSTLY = 0.8
"""Chance of the main dimensions."""
OFTEN = 0.25
"""Chance of any other setting in `RANGES`."""
SELDOM = 0.03
"""Chance of a setting outside `RANGES`."""

RANGES: dict[str, tuple[Any, ...]] = {
    "limits.max_turns": (1, 2, 4),
    "limits.max_turn_tokens": (8, 24, 48),
    "limits.max_tokens": (200, 320, 500),
    "limits.max_seconds": (2.0, 60.0),
    "limits.max_invalid_turns": (1, 2),
    "limits.max_parallel_calls": (1, 2),
    "limits.max_observation_tokens": (4, 64),
    "sampling.temperature": (0.5, 1.0, 1.3),
    "sampling.top_p": (0.7, 1.0),
    "sampling.top_k": (0, 20),
    "engine.max_concurrency": (1, 3, 64),
    "algorithm.advantage": tuple(advantages.names()),
    "algorithm.group_size": (1, 2, 3, 5),
    "algorithm.groups_per_step": (1, 2, 4),
    "algorithm.dynamic_sampling": ({"max_rounds": 2}, {"max_rounds": 1, "oversampling": 1.7}, None),
    "algorithm.overlong": ({"max_sampled_tokens": 30, "buffer": 20}, None),
    "algorithm.drop_truncated": (True, False),
    "algorithm.kl_in_reward": (0.0, 0.05),
    "staleness.mode": ("on_policy", "stream", "stale", "partial"),
    "staleness.max_staleness": (1, 2, 3),
    "staleness.window": (4, 6),
    "staleness.when_late": ("wait", "drop", "mask"),
    "staleness.cut.extra_episodes": (0, 2),
    "staleness.cut.deadline": (None, 0.3),
    "staleness.cut.min_episodes": (None, 1),
    "staleness.allow_uncorrected": (True,),
    "learner.loss": tuple(losses.names()),
    "learner.corrections": (*([name] for name in corrections.names()), ["truncate", "veto"]),
    "learner.aggregation": ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum"),
    "learner.old_logprobs": ("auto", "learner", "interpolated"),
    "learner.mini_batches": (1, 2, 3),
    "learner.token_budget": (512, 700, 2000),
    "learner.kl_coef": (0.0, 0.01),
    "learner.share_prefixes": (True, False),
    "learner.checkpointing": ("off", "full", "sparse"),
    "learner.lora": ({"rank": 2}, None),
    "learner.lr": (1e-4, 1e-2),
    "critic.lr": (1e-4, 1e-2),
    "process_reward.lr": (1e-4, 1e-2),
    "eval.every": (0, 1, 2),
    "eval.samples": (1, 2),
    "run.save_every": (1, 2),
    "run.keep_last": (1, 3),
    "run.save_trajectories": (0, 3),
    "placement.sleep": (True, False),
    "profiler.timeline": (True, False),
}
"""Settings that matter most, with values for runs of seconds."""
_MAIN = ("staleness.mode", "algorithm.advantage", "learner.loss", "learner.corrections")

LEFT_OUT = {
    "model base_model data env": "what is played is drawn by `case`",
    "engine.name engine.options": "likewise",
    "workers": "likewise; its times bound what a busy machine takes",
    "run.folder run.steps run.epochs run.loggers run.max_failure_fraction": "the fuzz needs its own",
    "learner.reference learner.backend learner.device learner.ranks learner.nodes": "drawn by `case`",
    "learner.model learner.recording learner.temperature learner.seed learner.chat_template": "set from other sections",
    "learner.compile_layers": "compiles for a minute",
    "learner.skip_checks": "trains on wrong numbers when asked to",
    "placement.n_gpus placement.nnodes placement.gpu placement.learner_gpus placement.layout": "there are no GPUs",
    "rendering.chat_template rendering.tool_format": "belong to a model",
}
"""Reasons for settings that are not drawn."""
_LEFT_OUT = tuple(key for keys in LEFT_OUT for key in keys.split())


def fields(schema: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, annotation, default) of every setting below a section; sections are not settings."""
    if dataclasses.is_dataclass(schema):
        hints = get_type_hints(schema)
        found = {each.name: (hints[each.name], each.default) for each in dataclasses.fields(schema)}
    else:
        found = {
            name: (
                Annotated[field.annotation, *field.metadata]
                if field.metadata and not _is_section(field.annotation)
                else field.annotation,
                field.default,
            )
            for name, field in schema.model_fields.items()
        }
    for name, (annotation, default) in found.items():
        if _is_section(annotation):
            yield from fields(annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, annotation, default


def is_drawn(key: str) -> bool:
    """Return whether a setting may be drawn."""
    return not any(key == left or key.startswith(f"{left}.") for left in _LEFT_OUT)


def settings(rng: random.Random) -> dict[str, Any]:
    """Return random values of random settings, by dotted key. They may contradict each other."""
    drawn: dict[str, Any] = {}
    for key, annotation, default in fields(RunConfig):
        if not is_drawn(key) or key in RANGES:
            continue
        if rng.random() < SELDOM and (value := draw(rng, annotation, default)) is not ...:
            drawn[key] = value
    for key, values in RANGES.items():
        if rng.random() < (MOSTLY if key in _MAIN else OFTEN):
            drawn[key] = rng.choice(values)
    for key, registry in (("algorithm.advantage", advantages), ("learner.loss", losses)):
        if key in drawn and rng.random() < OFTEN:
            options = draw_section(rng, registry.get(drawn[key]).options, 0.5)
            drawn[f"{key}_options"] = options
    return drawn


def draw_section(rng: random.Random, schema: type[BaseModel], chance: float) -> dict[str, Any]:
    """Return some settings of one section."""
    drawn = {
        key: draw(rng, annotation, default) for key, annotation, default in fields(schema) if rng.random() < chance
    }
    return {key: value for key, value in drawn.items() if value is not ... and "." not in key}


def draw(rng: random.Random, annotation: Any, default: Any) -> Any:
    """Return a random value of a type, or ... if the type says too little: a path, a mapping of anything."""
    bounds: list[Any] = []
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        bounds += more
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        return draw(rng, Annotated[rng.choice(arguments), *bounds] if bounds else rng.choice(arguments), default)
    if get_origin(annotation) is Literal:
        return rng.choice(arguments)
    if annotation is NoneType:
        return None
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return str(rng.choice(list(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return draw_section(rng, annotation, 0.5)
    if get_origin(annotation) is tuple and arguments[-1] is ...:
        items = [draw(rng, arguments[0], None) for _ in range(rng.randrange(3))]
        return ... if ... in items else items
    draws: Mapping[Any, Callable[[], Any]] = {
        bool: lambda: rng.random() < 0.5,
        int: lambda: _number(rng, bounds, default, [0, 1, 2, 3]),
        float: lambda: _number(rng, bounds, default, [0.0, 0.1, 0.9, 1.5]),
    }
    return draws[annotation]() if annotation in draws else ...


def _number(rng: random.Random, bounds: list[Any], default: Any, usual: list[Any]) -> Any:
    """Return a number near 0 or the default that keeps the bounds (`annotated_types`), or ... if none does."""
    candidates = usual + ([default, type(default)(default * 2)] if isinstance(default, int | float) else [])
    limits = {
        name: getattr(bound, name) for bound in bounds for name in ("ge", "gt", "le", "lt") if hasattr(bound, name)
    }
    kept = [
        value
        for value in candidates
        if limits.get("ge", value) <= value <= limits.get("le", value)
        and ("gt" not in limits or value > limits["gt"])
        and ("lt" not in limits or value < limits["lt"])
    ]
    return rng.choice(kept) if kept else ...


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation))
