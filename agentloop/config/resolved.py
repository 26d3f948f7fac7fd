"""`ResolvedConfig`: a run with every setting decided. `resolve` makes it once; nothing changes it afterwards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentloop.config.learner import LearnerConfig
from agentloop.config.rollout import EngineConfig
from agentloop.config.run import RunConfig
from agentloop.config.workers import WorkersConfig
from agentloop.engines import ENGINES
from agentloop.errors import UserError

_GRACE_SECONDS = 60.0
"""Time beyond the longest episode before a worker without progress counts as hung."""
_USED_SHARE = 0.9
"""Fraction of a worker's GPU share that its engine may fill; the rest is overhead."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Facts:
    """Facts about the model, data and machine, collected before a run starts."""

    model: Path
    """Local folder of the model."""
    teacher: Path | None = None
    """Local folder of the teacher of `algorithm.distillation`."""
    folder: Path | None = None
    """Folder of the run; None: nothing is recorded."""
    num_tasks: int | None = None
    """Number of training tasks; None: `run.epochs` is not converted to steps."""
    has_gpus: bool = False
    """Whether this machine has GPUs."""
    learns: bool = True
    """Whether the run has a learner; `agentloop rollout` has none."""


class ResolvedConfig(RunConfig):
    """A run with every setting that follows from other settings or from `Facts`."""

    learner: LearnerConfig
    """The learner of the policy, with its settings from other sections."""
    given: RunConfig
    """The config as the user wrote it, with the number of steps; run folders, loggers and checkpoints store this
    one."""
    model_folder: Path
    """Local folder of the model."""
    critic_learner: LearnerConfig
    """The learner of the critic, for advantages that train one."""
    process_reward_learner: LearnerConfig
    """The learner of the process reward model, for advantages that train one."""

    @property
    def learner_gpus_per_node(self) -> int:
        """Number of GPUs per node that only the learner may use."""
        wanted = self.placement
        shares = wanted.layout in ("colocated", "mixed") or self.learner.device == "cpu"
        return 0 if wanted.n_gpus is None or shares else self.learner.ranks // (self.learner.nodes or 1)


def resolve(config: RunConfig, facts: Facts) -> ResolvedConfig:
    """Decide every open setting of a run. Raises `ValueError` if settings contradict each other."""
    given = config if facts.num_tasks is None else with_steps(config, facts.num_tasks)
    learner = _learner(given, facts)
    settled = {
        "learner": learner,
        "engine": _engine(given, facts),
        "workers": _workers(given, facts),
        "given": given,
        "model_folder": facts.model,
        "critic_learner": given.critic.as_learner(learner),
        "process_reward_learner": given.process_reward.as_learner(learner),
    }
    sections = {name: getattr(given, name) for name in given.model_fields_set}
    return ResolvedConfig.model_validate(sections | settled)


def with_steps(config: RunConfig, num_tasks: int) -> RunConfig:
    """Return the config with `run.epochs` converted to steps for that number of training tasks."""
    if config.run.epochs is None:
        return config
    steps = max(int(num_tasks * config.run.epochs / config.algorithm.groups_per_step), 1)
    return config.replace(run=config.run.replace(steps=steps, epochs=None))


def engine_size(config: RunConfig) -> int:
    """Return the number of GPUs that one engine is spread over."""
    tensor, pipeline = engine_degrees(config)
    return tensor * pipeline


def engine_degrees(config: RunConfig) -> tuple[int, int]:
    """Return the tensor and pipeline parallelism of an engine. Raises `UserError` unless both are 1 or more."""
    return _degree(config, "tensor_parallel_size"), _degree(config, "pipeline_parallel_size")


def _degree(config: RunConfig, name: str) -> int:
    value = config.engine.options.get(name, 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"engine.options.{name} is {value!r}, but it is a number of GPUs. Set it to 1 or more.")
    return value


def context_length(model: Path) -> int | None:
    """Return the context length in tokens of the model in a folder, as vLLM derives it; None if unknown."""
    settings = model / "config.json"
    if not settings.is_file():
        return None
    content = json.loads(settings.read_text(encoding="utf-8"))
    text = content.get("text_config", content)  # vision models keep the settings of their language model there
    positions = text.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", "llama3", "longrope", "su"):  # max_position_embeddings is the scaled length
        return positions
    if kind == "yarn":
        positions = scaling.get("original_max_position_embeddings", positions)
    return int(positions * max(scaling.get("factor", 1.0), 1.0))


def _learner(config: RunConfig, facts: Facts) -> LearnerConfig:
    """Return the learner with local folders of its models and with its settings from other sections."""
    model = str(facts.model)
    reference = model if config.learner.reference == config.model else config.learner.reference
    if facts.teacher is not None:
        reference = str(facts.teacher)
    recording = config.profiler.of_learner(facts.folder) if facts.folder is not None else None
    return config.learner.replace(
        model=model,
        reference=reference,
        temperature=config.sampling.temperature or 1.0,  # without a learner the engine may be greedy
        seed=config.run.seed,
        chat_template=config.rendering.template_text,
        total_updates=config.schedule_updates,
        recording=recording,
    )


def _engine(config: RunConfig, facts: Facts) -> EngineConfig:
    """Return the engine with all arguments of its constructor; arguments that the user set take precedence."""
    kind = ENGINES.get(config.engine.name)
    most = config.max_tokens(context_length(facts.model))
    options: dict[str, Any] = {"model": str(facts.model), "max_model_len": most}
    if kind.bounds_pixels and config.rendering.max_pixels is not None:
        options["max_pixels"] = config.rendering.max_pixels
    if facts.learns and kind.takes_learner_dtype:
        options["dtype"] = config.learner.compute_dtype
    if facts.learns and config.learner.router_replay and kind.returns_routing is not None:
        options[kind.returns_routing] = True
    lora = config.learner.lora
    if facts.learns and kind.takes_adapters and lora is not None and lora.publish == "adapters":
        options["adapters"] = lora.rank
    if facts.learns and kind.runs_on_gpus and config.placement.sleeps:
        options["sleeps"] = True
    share = config.workers.gpus
    if facts.learns and kind.may_share_gpu and share is not None and 0 < share < 1:
        options |= {"gpu_memory_utilization": round(_USED_SHARE * share, 3), "shares_gpu": True}
    return config.engine.replace(options=options | config.engine.options)


def _workers(config: RunConfig, facts: Facts) -> WorkersConfig:
    settled: dict[str, Any] = {}
    if config.workers.stall_seconds is None:
        settled["stall_seconds"] = config.limits.max_seconds + _GRACE_SECONDS
    if config.workers.kind == "ray" and config.workers.gpus is None:
        on_gpus = ENGINES.get(config.engine.name).runs_on_gpus and facts.has_gpus
        settled["gpus"] = engine_size(config) if on_gpus else 0
    return config.workers.replace(**settled)
