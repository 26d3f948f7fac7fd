"""Assign the GPUs of a config to learner and engines."""

from __future__ import annotations

from typing import Any

from agentloop.config.run import RunConfig
from agentloop.engines import ENGINES
from agentloop.errors import UserError
from agentloop.trainer import advantages
from agentloop.trainer.sizing import gpus as known_gpus
from agentloop.trainer.sizing.derive import Placed, derive
from agentloop.trainer.sizing.gpus import Gpu
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.megatron_models import why_unsupported
from agentloop.trainer.sizing.memory import Precision
from agentloop.trainer.sizing.placement import Placement
from agentloop.trainer.sizing.search import PlannedRun
from agentloop.trainer.sizing.step_time import Work

_SAMPLED = 0.5
"""Assumed fraction of an episode's tokens that is sampled; the others are prompts and tool results."""
_ENGINE_SHARE = 0.95
"""Fraction of the memory next to the learner that an engine gets; the rest is a margin for uncounted buffers."""


def place(config: RunConfig, hf_config: Any) -> tuple[RunConfig, Placed | None]:
    """Return the config with all settings that follow from `placement`, and the placement.

    Returns the config unchanged and None if `placement.n_gpus` is not set. `hf_config` is the transformers config of
    the model. Raises `UserError` if the placement is impossible or contradicts other settings.
    """
    if config.placement.n_gpus is None:
        return config, None
    gpu = _gpu(config)
    run = planned(config, hf_config)
    placed = derive(config, run, gpu)
    return with_placement(config, placed, gpu), placed


def check_devices(config: RunConfig) -> None:
    """Raise `UserError` if this node has fewer GPUs than the placement needs."""
    wanted = config.placement
    if wanted.n_gpus is None:
        return
    import torch

    per_node, here = wanted.n_gpus // wanted.nnodes, torch.cuda.device_count()
    if per_node > here:
        fix = (
            f"Set placement.n_gpus={here * wanted.nnodes}, or raise placement.nnodes to the number of your nodes."
            if here
            else "Start the run on a node with GPUs, or omit `placement` to run on CPUs."
        )
        raise UserError(
            f"placement.n_gpus is {wanted.n_gpus} on {wanted.nnodes} nodes, {per_node} on each, but this node has "
            f"{here} GPUs. {fix}"
        )


def planned(
    config: RunConfig, hf_config: Any, *, mean_tokens: float | None = None, sampled: float = _SAMPLED
) -> PlannedRun:
    """Return the inputs of the estimates for a run.

    Episodes have `mean_tokens` on average (None: half of the longest), of which the fraction `sampled` is sampled. The
    estimates assume that an auxiliary model is as large as the policy. Raises `UserError` if `mean_tokens` is above the
    longest.
    """
    learner = config.learner.replace(model=config.model)
    longest = config.max_tokens(getattr(hf_config.get_text_config(), "max_position_embeddings", None))
    if mean_tokens is not None and mean_tokens > longest:
        raise UserError(
            f"Episodes cannot have {mean_tokens:g} tokens on average, because the longest has {longest}. Lower "
            "--mean-tokens, or raise limits.max_tokens (and learner.token_budget, which also bounds an episode)."
        )
    advantage = advantages.get(config.algorithm.advantage)
    work = Work(
        trajectories=config.trajectories_per_step,
        mean_tokens=mean_tokens or longest / 2,
        longest=longest,
        trained=sampled,
        updates=learner.mini_batches,
    )
    return PlannedRun.of(
        hf_config,
        work,
        Precision.of(learner),
        concurrency=config.engine.max_concurrency,
        reference=learner.loads_reference,
        auxiliary_models=int(advantage.value_targets is not None or advantage.needs_process_rewards),
        auxiliary_references=int(
            advantage.needs_process_rewards and config.process_reward.as_learner(learner).loads_reference
        ),
        fsdp_only=_why_fsdp_only(config, hf_config),
        lora_rank=learner.lora.rank if learner.lora else 0,
        fp8=learner.fp8 != "off",
        engine_fp8=config.engine.options.get("quantization") == "fp8",
        splits_engine=ENGINES.get(config.engine.name).runs_on_gpus,
        shares_prefixes=bool(learner.share_prefixes),
    )


def _why_fsdp_only(config: RunConfig, hf_config: Any) -> str:
    advantage = config.algorithm.advantage
    if advantages.get(advantage).value_targets is not None:
        return (
            f"learner.backend=megatron has no critic, which algorithm.advantage={advantage} needs. Set "
            "learner.backend=fsdp."
        )
    # Settings of a layout are left out: each layout has its own.
    if settings := list(config.learner.replace(**Layout().settings()).settings_of("fsdp")):
        return f"learner.backend=megatron does not support {', '.join(settings)}. Set learner.backend=fsdp."
    return why_unsupported(hf_config)


def with_placement(config: RunConfig, placed: Placed, gpu: Gpu) -> RunConfig:
    """Return the config with the settings of a placement. Raises `UserError` if the config sets another value."""
    placement = placed.placement
    if contradicted := contradictions(config, placement):
        faults = (
            f"{key} is {getattr(getattr(config, section), name)}, but the placement requires {value}: remove it."
            for key, value in contradicted.items()
            for section, name in [key.split(".")]
        )
        raise UserError(f"This placement contradicts the config. {' '.join(faults)}")
    workers, learner = _derived(placement)
    options = dict(config.engine.options)
    if placement.layout != "separate" and ENGINES.get(config.engine.name).runs_on_gpus:
        share = round(_ENGINE_SHARE * placed.engine_memory / gpu.memory, 2)
        options.setdefault("gpu_memory_utilization", share)
    return config.replace(
        workers=config.workers.replace(**workers),
        learner=config.learner.replace(**learner),
        engine=config.engine.replace(options=options),
        placement=config.placement.replace(
            layout=placement.layout, learner_gpus=placement.learner_gpus, sleep=placed.sleeps
        ),
    )


def contradictions(config: RunConfig, placement: Placement) -> dict[str, Any]:
    """Return the value that a placement requires, for each key that the config sets to another one."""
    workers, learner = _derived(placement)
    return {
        f"{section}.{name}": value
        for section, settings, derived in (
            ("workers", config.workers, workers),
            ("learner", config.learner, learner),
        )
        for name, value in derived.items()
        if name in settings.model_fields_set and getattr(settings, name) not in (value, None)
    }


def _derived(placement: Placement) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of workers and of the learner that follow from a placement."""
    workers = {"kind": "ray", "count": placement.num_engines, "gpus": placement.engine_size}
    return workers, {"ranks": placement.learner_gpus, "nodes": placement.learner_nodes}


def lines(placed: Placed) -> dict[str, str]:
    """Return a summary of the placement for the user, as label -> text."""
    turns = "engines sleep while the learner trains, and the learner sleeps while they sample: about "
    sleep = {"turns": f"{turns}{placed.handover_seconds:.1f} s per step (estimated)"} if placed.sleeps else {}
    return (
        placed.placement.lines()
        | sleep
        | {
            "a step": f"about {placed.step_seconds:.1f} s: {placed.training_seconds:.1f} s of training, "
            f"{placed.rollout_seconds:.1f} s of rollout (estimated)"
        }
    )


def _gpu(config: RunConfig) -> Gpu:
    if config.placement.gpu is not None:
        return known_gpus.find(config.placement.gpu)
    import torch

    if not torch.cuda.device_count():
        raise UserError(
            f"placement.n_gpus is {config.placement.n_gpus}, but this machine has no GPU. To place a run for "
            "another machine, name its GPU: placement.gpu=H200, with --dry-run."
        )
    properties = torch.cuda.get_device_properties(0)
    gpu = known_gpus.find_device(properties.name)
    if gpu is None:
        raise UserError(
            f"The estimates have no data for the GPU {properties.name!r}. Set placement.gpu to a similar GPU and the "
            "memory of yours in GiB, such as placement.gpu=A100-80GB:48."
        )
    return known_gpus.find(f"{gpu.name}:{properties.total_memory / 2**30:.0f}")
