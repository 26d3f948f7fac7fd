"""Convert corrections for the gap between the sampling policy and the trained policy.

In verl's decoupled mode the learner computes the old policy, and tokens are weighted by old / sampling policy, as with
`learner.corrections`. In bypass mode the sampling policy is the old policy, so the only ratio is that of the loss. The
loss type reinforce weights tokens by current / sampling policy, which is `cispo` without a lower bound.
"""

from __future__ import annotations

import math
from typing import Any

from agentloop.trainer.from_verl.config import Settings, VerlConfig

_KEY = "algorithm.rollout_correction"
_LEVELS = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}
"""Rejections by the ratio; verl bounds its inverse."""
_OLD_LEVELS = {level: level for level in _LEVELS.values()}
"""Rejections before 0.7, with bounds of the ratio itself and a separate key for the lower bound."""


def is_bypassed(verl: VerlConfig) -> bool:
    """Return whether the sampling policy is the old policy of the loss."""
    asynchronous = "async_training"
    verl.read_keys.add("actor_rollout_ref.actor.use_rollout_log_probs")  # verl itself no longer reads it
    if verl.get(f"{asynchronous}.compute_prox_log_prob", default=False):
        return False
    before_0_9 = verl.get(f"{asynchronous}.use_rollout_log_probs")
    return bool(verl.get(f"{_KEY}.bypass_mode", default=False) if before_0_9 is None else before_0_9)


def corrections(verl: VerlConfig, loss: str) -> Settings:
    """Return `learner.corrections`, or `learner.loss` if the loss itself is the correction."""
    level, bounds = _level(verl), _bounds(verl)
    rejections = _rejections(verl)
    verl.unsupported(f"{_KEY}.rollout_is_batch_normalize", "weights are not normalised to a mean of 1 here.")
    kind, is_gradient = verl.get(f"{_KEY}.loss_type", default="ppo_clip"), verl.get(f"{_KEY}.use_policy_gradient")
    if not is_bypassed(verl):
        found = ([_weights(level, bounds)] if level else []) + rejections
        return {"learner.corrections": found} if found else {}
    if rejections:
        verl.lack(
            f"{_KEY}.rollout_rs with bypass_mode: agentloop rejects nothing in this mode. Set {_KEY}.bypass_mode=False."
        )
    if (kind != "reinforce" and not is_gradient) or loss != "ppo":
        return {}
    low, high = bounds
    if level is None:
        return {"learner.loss": "reinforce"}
    if level != "token" or low is not None:
        verl.lack(f"{_KEY}.loss_type=reinforce has only rollout_is=token with an upper bound here; this is used.")
    return {"learner.loss": "cispo", "learner.loss_options": {"clip_low": 1.0, "clip_high": high - 1}}


def _level(verl: VerlConfig) -> str | None:
    """Return the level of importance sampling; before 0.6 the key of the cap alone enables it."""
    level = verl.get(f"{_KEY}.rollout_is", "algorithm.rollout_is_level")
    if level in (None, "null", "None", False):
        return "token" if verl.number("actor_rollout_ref.actor.tis_imp_ratio_cap", default=-1) > 0 else None
    if level not in ("token", "sequence"):
        verl.lack(f"{_KEY}.rollout_is={level} is not known here (known: token, sequence).")
        return None
    return str(level)


def _bounds(verl: VerlConfig) -> tuple[float | None, float]:
    """Return (low, high): '0.5_5.0' zeroes ratios outside the bounds, and a single number is a cap."""
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
    bounds_of_names = [part.strip() for part in str(thresholds).split(",")]
    if len(bounds_of_names) == 1:
        bounds_of_names *= len(names)
    lower = verl.number(f"{_KEY}.rollout_rs_threshold_lower")
    for name, threshold in zip(names, bounds_of_names, strict=False):
        bounds = _old_bounds(threshold, lower) if name in _OLD_LEVELS else _ratio_bounds(name, threshold)
        if bounds is None:
            verl.lack(f"{_KEY}.rollout_rs={name} is not known here (known: {', '.join(_LEVELS)}, token_k2, token_k3).")
            continue
        low, high = bounds
        level = (_LEVELS | _OLD_LEVELS).get(name, "token")
        found.append({"name": "reject", "options": {"level": level, "low": round(low, 9), "high": round(high, 9)}})
    if found:
        verl.note("Rejected tokens count in the averages of the loss here, unlike in verl.")
    return found


def _old_bounds(upper: str, lower: Any) -> tuple[float, float]:
    return (1 / float(upper) if lower in (None, "null", "None") else float(lower)), float(upper)


def _ratio_bounds(name: str, threshold: str) -> tuple[float, float] | None:
    """Return bounds of the ratio old / sampling policy; verl bounds its inverse, or a divergence around 1."""
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
    """Return the ratio r with r - 1 - log(r) = `bound` between two given log ratios, by bisection."""
    for _ in range(100):
        middle = (inside + outside) / 2
        if math.exp(middle) - 1 - middle > bound:
            outside = middle
        else:
            inside = middle
    return math.exp(inside)
