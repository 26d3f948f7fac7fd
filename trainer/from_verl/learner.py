"""Convert optimizer, batch sizes, dtypes and adapters."""

from __future__ import annotations

from typing import Any

from agentloop.trainer.from_verl.asynchronous import cycle, updates_of_batch
from agentloop.trainer.from_verl.config import Settings, VerlConfig
from agentloop.trainer.from_verl.environment import lengths

_ACTOR = "actor_rollout_ref.actor"
_OPTIM = f"{_ACTOR}.optim"
_SCHEDULES = {"constant": "constant", "cosine": "cosine", "linear": "linear"}
_TYPES = {"fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}


def learner(verl: VerlConfig) -> Settings:
    """Convert batch sizes, optimizer, dtypes and adapters."""
    for key in sorted(verl.set_keys):
        if "override_" in key and key.endswith(("dropout", "pdrop")):
            verl.unsupported(key, "the learner has no dropout here.", harmless=(None, False, 0, "0", "0.0"))
    settings = _batches(verl)
    return settings | _optimizer(verl) | _types(verl) | _lora(verl)


def _batches(verl: VerlConfig) -> Settings:
    if verl.number(f"{_ACTOR}.ppo_epochs", default=1) > 1:
        verl.lack(f"{_ACTOR}.ppo_epochs={verl.get(f'{_ACTOR}.ppo_epochs')}: agentloop trains on a batch once.")
    tasks, updates = cycle(verl)
    return {
        "algorithm.groups_per_step": tasks,
        "learner.mini_batches": updates,
        "learner.token_budget": _token_budget(verl),
    }


def _token_budget(verl: VerlConfig) -> int:
    """Return the token budget of the ranks that share a sequence; it must hold the longest trajectory."""
    longest, _ = lengths(verl)
    shared = sequence_parallel(verl) * verl.number(f"{_ACTOR}.megatron.context_parallel_size", default=1)
    if verl.get(f"{_ACTOR}.use_dynamic_bsz", default=False):
        return max(int(verl.number(f"{_ACTOR}.ppo_max_token_len_per_gpu", default=16384)) * shared, longest)
    return longest * (verl.number(f"{_ACTOR}.ppo_micro_batch_size_per_gpu") or 1)  # type: ignore[no-any-return]


def sequence_parallel(verl: VerlConfig) -> int:
    """Return the largest degree among the current and older keys, as verl does."""
    places = (
        f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
        f"{_ACTOR}.ulysses_sequence_parallel_size",
        f"{_ACTOR}.veomni.ulysses_parallel_size",
    )
    return max(verl.number(place, default=1) for place in places)


def _optimizer(verl: VerlConfig) -> Settings:
    steps = verl.number("trainer.total_training_steps")
    warmup, ratio = verl.number(f"{_OPTIM}.lr_warmup_steps", default=-1), verl.number(f"{_OPTIM}.lr_warmup_steps_ratio")
    if warmup <= 0 and ratio and not steps:
        verl.lack(
            f"{_OPTIM}.lr_warmup_steps_ratio={ratio} needs trainer.total_training_steps, which is not set: set "
            "learner.warmup_updates."
        )
    if warmup <= 0:
        warmup = int((ratio or 0.0) * (steps or 0))
    schedule = verl.named(
        _SCHEDULES,
        f"{_OPTIM}.warmup_style",
        f"{_OPTIM}.lr_scheduler_type",
        f"{_OPTIM}.lr_decay_style",
        default="constant",
    )
    _refuse_optimizers(verl, schedule)
    betas = verl.get(f"{_OPTIM}.betas")
    return {
        "learner.lr": verl.number(f"{_OPTIM}.lr"),
        "learner.lr_schedule": schedule,
        "learner.warmup_updates": warmup * updates_of_batch(verl),
        "learner.betas": betas,
        "learner.weight_decay": verl.number(f"{_OPTIM}.weight_decay"),
        "learner.grad_clip": verl.number(f"{_OPTIM}.clip_grad", f"{_OPTIM}.grad_clip", f"{_ACTOR}.grad_clip"),
    }


def _refuse_optimizers(verl: VerlConfig, schedule: str) -> None:
    optimizer = str(verl.get(f"{_OPTIM}.optimizer", default="AdamW"))
    if optimizer.lower() not in ("adam", "adamw"):
        verl.lack(f"{_OPTIM}.optimizer={optimizer}: the optimizer is always AdamW here.")
    verl.unsupported(f"{_OPTIM}.lr_warmup_init", "the learning rate starts at 0 here.", harmless=(None, 0.0))
    ends: dict[str, tuple[Any, ...]] = {
        f"{_OPTIM}.min_lr_ratio": (None, 0.0),
        f"{_OPTIM}.min_lr": (None, 0.0),
        f"{_OPTIM}.num_cycles": (None, 0.5),
        f"{_OPTIM}.lr_decay_steps": (None, verl.number("trainer.total_training_steps")),
    }
    verl.read_keys.update(ends)
    for key, plain in ends.items() if schedule != "constant" else ():
        verl.unsupported(key, f"a {schedule} schedule reaches 0 at the last step here.", harmless=plain)


def _types(verl: VerlConfig) -> Settings:
    """Convert dtypes and checkpointing; Megatron's optimizer always keeps float32 parameters."""
    kept = str(verl.get(f"{_ACTOR}.fsdp_config.model_dtype", default="fp32"))
    places = ("fsdp_config.dtype", "fsdp_config.mixed_precision.param_dtype", "megatron.dtype")
    computed = [str(verl.get(f"{_ACTOR}.{place}", default="bfloat16")) for place in places]
    if kept not in _TYPES or not set(computed) <= set(_TYPES):
        verl.lack(f"The learner uses {', '.join({kept, *computed} - set(_TYPES))} in verl; here it uses bfloat16.")
    frees = verl.get("actor_rollout_ref.model.enable_gradient_checkpointing", default=True)
    recomputed = verl.get(f"{_ACTOR}.megatron.override_transformer_config.recompute_granularity")
    is_megatron = verl.get(f"{_ACTOR}.strategy") == "megatron"
    checkpointing = {"full": "full", "selective": "selective"}.get(str(recomputed), "off") if is_megatron else None
    return {
        "learner.param_dtype": _TYPES.get(kept) if kept != "fp32" and not is_megatron else None,
        "learner.compute_dtype": "bfloat16",
        "learner.checkpointing": checkpointing or ("full" if frees else "off"),
        "learner.freeze_vision": verl.get(f"{_ACTOR}.freeze_vision_tower") or None,
    }


def _lora(verl: VerlConfig) -> Settings:
    model = "actor_rollout_ref.model"
    of_megatron = verl.number(f"{model}.lora.rank", default=0)
    place = (f"{model}.lora.rank", f"{model}.lora.alpha", f"{model}.lora.target_modules")
    if not of_megatron:
        place = (f"{model}.lora_rank", f"{model}.lora_alpha", f"{model}.target_modules")
    rank, alpha = verl.number(place[0], default=0), verl.number(place[1], default=16)
    targets = verl.get(place[2], default="all-linear")
    verl.unsupported(f"{model}.lora_adapter_path", "adapters always start from zero here.", harmless=(None, "null"))
    if not rank:
        return {}
    verl.unsupported(f"{model}.exclude_modules", "list the modules with adapters under learner.lora.targets.")
    if of_megatron:
        verl.lack(f"{model}.lora: only the backend fsdp has adapters here, not megatron.")
    return {
        "learner.lora.rank": rank,
        "learner.lora.alpha": float(alpha),
        "learner.lora.targets": "all" if of_megatron or targets == "all-linear" else targets,
    }
