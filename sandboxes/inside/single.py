"""A world that is used once: inside walls that others have built, or in a directory where there are none."""

from __future__ import annotations

import os
import sys
from _socket import socket

from agentloop.sandboxes.inside import program
from agentloop.sandboxes.inside.isolation import libc, removal, sweep, walls
from agentloop.sandboxes.inside.world import World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(control_fd: int, plan: dict[str, Any]) -> None:
    """`plan`: the working `directory`; where there are such, the seccomp `filter` of steps, `restrict`, a module with
    a function of that name and its arguments, which steps call, `enclose`, a module whose function of that name closes
    the whole world off and gives what kills everything in it, and `counts_processes` and `user`, as in `Walls`."""
    os.set_inheritable(control_fd, False)
    control = socket(fileno=control_fd)
    program.start_of_interpreter()
    has_namespace = os.getpid() == 1
    if not has_namespace:
        libc.become_subreaper()
    if plan.get("user") is not None:  # it is root, and what becomes another user must get nothing back
        libc.drop_bounding_set()
    libc.set_dumpable(False)
    try:
        World(control, _walls(plan, has_namespace)).serve()
    finally:
        if not has_namespace:
            removal.remove(plan["directory"])


def _walls(plan: dict[str, Any], has_namespace: bool) -> walls.Walls:
    restrict = walls.nothing
    if plan.get("restrict"):
        module, arguments = plan["restrict"]
        rules = sys.modules[module]

        def restrict() -> None:
            rules.restrict(**arguments)

    kill = sweep.namespace if has_namespace else sweep.descendants
    if plan.get("enclose"):
        kill = sys.modules[plan["enclose"]].enclose()
    return walls.Walls(
        directory=plan["directory"],
        user=plan.get("user"),
        filter=plan.get("filter", b""),
        restrict=restrict,
        kill=kill,
        counts_processes=plan.get("counts_processes", has_namespace),
    )
