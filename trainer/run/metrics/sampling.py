"""Metrics of dynamic sampling: outcomes of the groups that a step played."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.trainer.batch.outcomes import EQUAL, TRUNCATED, UNJUDGED
from agentloop.trainer.batch.train_batch import NO_SAMPLED_TOKENS
from agentloop.trainer.schedule.queue import LATE

if TYPE_CHECKING:
    from agentloop.trainer.schedule.producer import Selection


def sampling_metrics(selection: Selection) -> dict[str, float]:
    """Count every played group once.

    It is either trained, equal (all advantages are 0), unjudged, untrainable (truncated, or nothing was sampled), or
    surplus.
    """
    fates = selection.fates
    counts = {
        "played": len(selection.played),
        "trained": len(selection.trained),
        "equal": fates[f"dropped/{EQUAL}"],
        "unjudged": fates[f"dropped/{UNJUDGED}"],
        "untrainable": fates[f"dropped/{TRUNCATED}"] + fates[f"dropped/{NO_SAMPLED_TOKENS}"],
        "surplus": fates[f"dropped/{LATE}"],
    }
    assert 2 * counts["played"] == sum(counts.values()), "every group has exactly one outcome"
    return {"sampling/rounds": float(selection.rounds)} | {
        f"sampling/groups_{fate}": float(count) for fate, count in counts.items()
    }
