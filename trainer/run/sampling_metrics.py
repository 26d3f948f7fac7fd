"""Where the groups of a step went, under dynamic sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.trainer.schedule.failures import is_uninformative

if TYPE_CHECKING:
    from agentloop.trainer.schedule.producer import Selection


def sampling_metrics(selection: Selection) -> dict[str, float]:
    """Every group that left counts once: trained, equal (all rewards), or surplus."""
    groups = [each.group for each in selection.departed if each.group is not None]
    trained = selection.trained
    equal = sum(map(is_uninformative, groups))
    return {
        "sampling/rounds": float(selection.rounds),
        "sampling/groups_played": float(len(groups)),
        "sampling/groups_trained": float(len(trained)),
        "sampling/groups_equal": float(equal),
        "sampling/groups_surplus": float(len(groups) - equal - len(trained)),
    }
