"""Weights for the difference between the policy that sampled and the one that is trained.

verl's decoupled mode computes the old policy with the learner and weighs tokens by old / sampling policy, as
`learner.corrections` does. In bypass mode the policy that sampled is the old one: then ratios of the loss are all there
is, but for the loss type reinforce, whose explicit weight current / sampling policy is `cispo` without a lower bound.
"""

from __future__ import annotations

import math
from typing import Any

from agentloop.trainer.from_verl.config import Settings, VerlConfig

_KEY = "algorithm.rollout_correction"
_LEVELS = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}
"""Rejections by the ratio itself, whose inverse has the bounds."""
_OLD_LEVELS = {level: level for level in _LEVELS.values()}
"""Before 0.7: the ratio has them, and a key of its own the lower one."""


def is_bypassed(verl: VerlConfig) -> bool:
    """The policy that sampled is the old one."""
    by_actor = verl.get(
        "actor_rollout_ref.actor.use_rollout_log_probs", "async_training.use_rollout_log_probs", default=False
    )
    if verl.get("async_training.compute_prox_log_prob", default=False):
        return False
    return bool(verl.get(f"{_KEY}.bypass_mode", default=False) or by_actor)


def corrections(verl: VerlConfig, loss: str) -> Settings:
    """`learner.corrections`, and `learner.loss` where the correction is one of it."""
    level, bounds = _level(verl), _bounds(verl)
    rejections = _rejections(verl)
    verl.unsupported(f"{_KEY}.rollout_is_batch_normalize", "weights keep their mean here.")
    kind, is_gradient = verl.get(f"{_KEY}.loss_type", default="ppo_clip"), verl.get(f"{_KEY}.use_policy_gradient")
    if not is_bypassed(verl):
        found = ([_weights(level, bounds)] if level else []) + rejections
        return {"learner.corrections": found} if found else {}
    if rejections:
        verl.lack(
            f"{_KEY}.rollout_rs with bypass_mode: nothing is rejected here; set bypass_mode=False in verl's terms."
        )
    if (kind != "reinforce" and not is_gradient) or loss != "ppo":
        return {}
    low, high = bounds
    if level is None:
        return {"learner.loss": "reinforce"}
    if level != "token" or low is not None:
        verl.lack(f"{_KEY}.loss_type=reinforce is known with rollout_is=token and one bound here; that was taken.")
    return {"learner.loss": "cispo", "learner.loss_options": {"clip_low": 1.0, "clip_high": high - 1}}


def _level(verl: VerlConfig) -> str | None:
    """Of importance sampling; the name of the cap alone in versions before 0.6."""
    level = verl.get(f"{_KEY}.rollout_is", "algorithm.rollout_is_level")
    if level in (None, "null", "None", False):
        return "token" if verl.number("actor_rollout_ref.actor.tis_imp_ratio_cap", default=-1) > 0 else None
    if level not in ("token", "sequence"):
        verl.lack(f"{_KEY}.rollout_is={level} is not known here; known are token, sequence.")
        return None
    return str(level)


def _bounds(verl: VerlConfig) -> tuple[float | None, float]:
    """'0.5_5.0' zeroes what is outside; a number caps."""
    cap = verl.number("actor_rollout_ref.actor.tis_imp_ratio_cap", default=-1)
    keys = (f"{_KEY}.rollout_is_threshold", "algorithm.rollout_is_threshold")
    low, _, high = str(verl.get(*keys, default=2.0) if cap <= 0 else cap).rpartition("_")
    return (float(low) if low else None), float(high)


def _weights(level: str, bounds: tuple[float | None, float]) -> dict[str, Any]:
    low, high = bounds
    if low is None:
        return {"name": "truncate", "options": {"level": level, "cap": high}}
    return {"name": "mask", "options": {"level": level, "low": low, "high": high}}


def _rejections(verl: VerlConfig) -> list[dict[str, Any]]:
    kinds, thresholds = verl.get(f"{_KEY}.rollout_rs"), verl.get(f"{_KEY}.rollout_rs_threshold")
    veto = verl.get(f"{_KEY}.rollout_token_veto_threshold", "algorithm.rollout_token_veto_threshold")
    found = [{"name": "veto", "options": {"threshold": float(veto)}}] if veto else []
    if kinds in (None, "null", "None", False):
        return found
    names = [name.strip() for name in str(kinds).split(",") if name.strip()]
    said = [part.strip() for part in str(thresholds).split(",")]
    lower = verl.number(f"{_KEY}.rollout_rs_threshold_lower")
    for name, threshold in zip(names, said * len(names) if len(said) == 1 else said, strict=False):
        bounds = _old_bounds(threshold, lower) if name in _OLD_LEVELS else _ratio_bounds(name, threshold)
        if bounds is None:
            verl.lack(f"{_KEY}.rollout_rs={name}: rejected is by {', '.join(_LEVELS)}, token_k2 and token_k3 here.")
            continue
        low, high = bounds
        level = (_LEVELS | _OLD_LEVELS).get(name, "token")
        found.append({"name": "reject", "options": {"level": level, "low": round(low, 9), "high": round(high, 9)}})
    if found:
        verl.note("Rejected tokens count in the averages of the loss here; in verl they do not.")
    return found


def _old_bounds(upper: str, lower: Any) -> tuple[float, float]:
    return (1 / float(upper) if lower in (None, "null", "None") else float(lower)), float(upper)


def _ratio_bounds(name: str, threshold: str) -> tuple[float, float] | None:
    """Of the ratio old / sampling policy. verl bounds its inverse, or a divergence that grows on both sides of 1."""
    if name in _LEVELS:
        low, _, high = threshold.rpartition("_")
        return 1 / float(high), 1 / float(low) if low else float(high)
    match name:
        case "token_k2":  # log(r)^2 / 2
            width = math.sqrt(2 * float(threshold))
            return math.exp(-width), math.exp(width)
        case "token_k3":  # r - 1 - log(r)
            return _k3_ratio(float(threshold), 0.0, -60.0), _k3_ratio(float(threshold), 0.0, 20.0)
    return None


def _k3_ratio(bound: float, inside: float, outside: float) -> float:
    """The ratio between those of two logarithms at which r - 1 - log(r) is `bound`."""
    for _ in range(100):
        middle = (inside + outside) / 2
        if math.exp(middle) - 1 - middle > bound:
            outside = middle
        else:
            inside = middle
    return math.exp(inside)
