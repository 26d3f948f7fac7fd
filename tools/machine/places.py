"""What tools of this folder need of an environment: its box, and the user that works in it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from agentloop.boxes.interface.box import Box
from agentloop.errors import ToolError
from agentloop.tools.base import ToolContext


class HasBox(Protocol):
    """An environment whose tools work in a box."""

    box: Box | None
    agent_user: str | None
    """User of the tools; None is that of the box."""
    deadline: float
    """`time.monotonic()` at which the time of the task is over."""


@dataclass(slots=True, frozen=True)
class Place:
    """A box, and the user in it."""

    box: Box
    user: str | None
    deadline: float

    @property
    def seconds_left(self) -> float:
        """Seconds until the time of the task is over."""
        return self.deadline - time.monotonic()


def place_of(ctx: ToolContext) -> Place:
    """Return where the tools of an episode work. Raises `ToolError` if its environment has no box."""
    box = getattr(ctx.env, "box", None)
    if box is None:
        raise ToolError("This task has no box to work in.")
    return Place(box, ctx.env.agent_user, ctx.env.deadline)
