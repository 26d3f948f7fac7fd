"""Convert verl's three asynchronous trainers to modes of `staleness`.

A step of agentloop ends with new weights for the engines. So it corresponds to one synchronisation of verl's fully
asynchronous trainer: `trigger_parameter_sync_step` times `require_batches` updates of `ppo_mini_batch_size` tasks each.
"""

from __future__ import annotations

import math

from agentloop.trainer.from_verl.config import Settings, VerlConfig, positive
from agentloop.trainer.from_verl.corrections import is_bypassed

_ACTOR = "actor_rollout_ref.actor"


def kind(verl: VerlConfig) -> str:
    """Return the kind of trainer: sync, one_step (one step ahead), fully_async, or verl's name of another kind."""
    if "async_training" in verl.values:
        return "fully_async"
    if "rollout" in verl.values and positive(verl.number("rollout.nnodes")):
        return "one_step"
    return str(verl.get("trainer.v1.trainer_mode", default="sync"))


def cycle(verl: VerlConfig) -> tuple[int, int]:
    """Return the numbers of tasks and of updates in a step."""
    tasks, per_update = verl.number("data.train_batch_size", default=1024), verl.number(f"{_ACTOR}.ppo_mini_batch_size")
    if kind(verl) == "fully_async":
        updates = updates_of_batch(verl) * verl.number("async_training.trigger_parameter_sync_step", default=4)
        return updates * per_update, updates
    if per_update and tasks % per_update:
        verl.note(
            f"{tasks} tasks per step are not a multiple of mini-batches of {per_update}: here mini-batches are nearly "
            "equal, in verl the last one is smaller."
        )
    return tasks, updates_of_batch(verl)


def updates_of_batch(verl: VerlConfig) -> int:
    """Return the number of updates per batch of verl's trainer, whose learning rate changes once per batch."""
    if kind(verl) == "fully_async":
        return int(verl.number("async_training.require_batches", default=1))
    tasks, per_update = verl.number("data.train_batch_size", default=1024), verl.number(f"{_ACTOR}.ppo_mini_batch_size")
    return math.ceil(tasks / per_update) if per_update else 1


def asynchronous(verl: VerlConfig) -> Settings:
    """Convert the kind of trainer to a staleness policy."""
    match kind(verl):
        case "sync":
            return {}
        case "fully_async":
            return _fully_async(verl)
        case "one_step":
            settings: Settings = {"staleness.mode": "stale", "staleness.max_staleness": 1}
        case mode:
            versions = verl.number("trainer.v1.sampler.max_off_policy_threshold", default=8)
            late = verl.get("trainer.v1.sampler.max_off_policy_strategy", default="drop")
            every = verl.number("trainer.v1.separate_async.parameter_sync_step", default=4)
            if mode == "separate_async" and every > 1:
                verl.note(
                    f"trainer.v1.separate_async.parameter_sync_step={every}: here engines get new weights after every "
                    f"step. For the same effect, make a step of {every} times as many tasks and mini-batches."
                )
            if versions == 1:  # verl counts the trained version too
                return {"staleness.mode": "on_policy"}
            settings = {
                "staleness.mode": "partial",
                "staleness.max_staleness": versions - 1,
                "staleness.when_late": late,
            }
    return settings | _uncorrected(verl)


def _fully_async(verl: VerlConfig) -> Settings:
    threshold = float(verl.number("async_training.staleness_threshold", default=0.1))
    is_partial = verl.get("async_training.partial_rollout", default=True)
    tasks, _ = cycle(verl)
    samples = positive(verl.number("rollout.total_rollout_steps"))
    steps = {"run.steps": math.ceil(samples / tasks)} if samples else {}
    if threshold <= 0:
        return steps | {"staleness.mode": "on_policy"}
    bound = max(math.ceil(threshold), 1)
    verl.note(
        f"async_training.staleness_threshold={threshold:g}: verl bounds the number of groups played ahead; here "
        f"max_staleness={bound} bounds the age in steps of the weights that sample a token."
    )
    mode = "partial" if is_partial else "stale"
    return steps | {"staleness.mode": mode, "staleness.max_staleness": bound} | _uncorrected(verl)


def _uncorrected(verl: VerlConfig) -> Settings:
    """Allow uncorrected staleness unless a correction is set, as verl does."""
    correction = "algorithm.rollout_correction"
    is_corrected = not is_bypassed(verl) and any(
        verl.get(f"{correction}.{name}") for name in ("rollout_is", "rollout_rs")
    )
    return {"staleness.allow_uncorrected": None if is_corrected else True}
