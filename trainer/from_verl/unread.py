"""Find settings of verl that no part of the converter has read."""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib import resources

from agentloop.trainer.from_verl.config import VerlConfig

_OPTIONAL_PARTS = (
    "actor_rollout_ref.actor.engine.",
    "actor_rollout_ref.actor.torchtitan.",
    "actor_rollout_ref.actor.veomni.",
    "actor_rollout_ref.model.mtp.",
    "distillation.",
    "reward.reward_model.",
    "reward_model.",
)
"""Key prefixes of parts that are reported once, by the key that enables them."""


def unread(verl: VerlConfig) -> list[str]:
    """Return the keys that the user set and no part read, except those in no_effect.txt."""
    text = resources.files(__package__).joinpath("no_effect.txt").read_text(encoding="utf-8")
    patterns = [line for line in text.splitlines() if line and not line.startswith("#")]
    critic = () if verl.get("algorithm.adv_estimator", default="gae") == "gae" else ("critic.",)
    return [
        key
        for key in sorted(verl.set_keys)
        if not _was_read(key, verl.read_keys)
        and not key.startswith((*_OPTIONAL_PARTS, *critic))
        and not any(fnmatchcase(key, pattern) for pattern in patterns)
    ]


def _was_read(key: str, read_keys: set[str]) -> bool:
    return any(key == each or key.startswith(f"{each}.") or each.startswith(f"{key}.") for each in read_keys)
