"""Metrics of dynamic sampling: the fate of the groups that a step played."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.trainer.schedule.failures import is_uninformative

if TYPE_CHECKING:
    from agentloop.trainer.schedule.producer import Selection


def sampling_metrics(selection: Selection) -> dict[str, float]:
    """Count every played group once: trained, equal (all its rewards are), or surplus."""
    num_played, num_trained = len(selection.played), len(selection.trained)
    num_equal = sum(map(is_uninformative, selection.played))
    return {
        "sampling/rounds": float(selection.rounds),
        "sampling/groups_played": float(num_played),
        "sampling/groups_trained": float(num_trained),
        "sampling/groups_equal": float(num_equal),
        "sampling/groups_surplus": float(num_played - num_equal - num_trained),
    }
