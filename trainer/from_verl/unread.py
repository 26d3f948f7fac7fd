"""What was set that nothing of the new config was made of."""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib import resources

from agentloop.trainer.from_verl.config import VerlConfig

_SAID_AS_A_WHOLE = (
    "actor_rollout_ref.actor.engine.",
    "actor_rollout_ref.actor.torchtitan.",
    "actor_rollout_ref.actor.veomni.",
    "actor_rollout_ref.model.mtp.",
    "distillation.",
    "reward.reward_model.",
    "reward_model.",
)
"""Beginnings of keys of parts that are here as a whole, or not, which is said where they are switched on."""


def unread(verl: VerlConfig) -> list[str]:
    """Keys that somebody set, that change results as far as is known here, and that nothing was made of."""
    text = resources.files(__package__).joinpath("no_effect.txt").read_text(encoding="utf-8")
    patterns = [line for line in text.splitlines() if line and not line.startswith("#")]
    critic = () if verl.get("algorithm.adv_estimator", default="gae") == "gae" else ("critic.",)
    return [
        key
        for key in sorted(verl.said)
        if not _was_asked(key, verl.asked)
        and not key.startswith((*_SAID_AS_A_WHOLE, *critic))
        and not any(fnmatchcase(key, pattern) for pattern in patterns)
    ]


def _was_asked(key: str, asked: set[str]) -> bool:
    return any(key == each or key.startswith(f"{each}.") or each.startswith(f"{key}.") for each in asked)
