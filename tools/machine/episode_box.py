"""`EpisodeBox`: the box of an episode, in which the tools of this folder work."""

from __future__ import annotations

import time
from dataclasses import dataclass

from agentloop.boxes.interface.box import Box
from agentloop.errors import ToolError
from agentloop.tools.base import ToolContext


@dataclass(slots=True, frozen=True)
class EpisodeBox:
    """The box of an episode, the user that works in it, and the deadline of the task."""

    box: Box
    user: str | None
    deadline: float

    @property
    def seconds_left(self) -> float:
        """Seconds until the task times out."""
        return self.deadline - time.monotonic()


def episode_box_of(ctx: ToolContext) -> EpisodeBox:
    """Return the box in which the tools of an episode work: the `box`, `agent_user` and `deadline` of its environment.

    Raises `ToolError` if it has no box.
    """
    box = getattr(ctx.env, "box", None)
    if box is None:
        raise ToolError("This task has no box to work in.")
    return EpisodeBox(box, ctx.env.agent_user, ctx.env.deadline)
