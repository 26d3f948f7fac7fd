"""A world that is used once: inside walls that others have built, or in a directory where there are none."""

from __future__ import annotations

import functools
import importlib
import os
import socket
from typing import Any

from agentloop.sandboxes.inside import libc, program, removal, sweep, walls
from agentloop.sandboxes.inside.world import World


def main(control_fd: int, plan: dict[str, Any]) -> None:
    """`plan`: the working `directory`; where there are such, the seccomp `filter` of steps, `restrict`, a module with
    a function of that name and its arguments, which steps call, `enclose`, a module whose function of that name closes
    the whole world off and gives what kills everything in it, and `counts_processes` and `user`, as in `Walls`."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    program.start_of_interpreter()
    has_namespace = os.getpid() == 1
    if not has_namespace:
        libc.become_subreaper()
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
        restrict = functools.partial(importlib.import_module(module).restrict, **arguments)
    kill = sweep.namespace if has_namespace else sweep.descendants
    if plan.get("enclose"):
        kill = importlib.import_module(plan["enclose"]).enclose()
    return walls.Walls(
        directory=plan["directory"],
        user=plan.get("user"),
        filter=plan.get("filter", b""),
        restrict=restrict,
        kill=kill,
        counts_processes=plan.get("counts_processes", has_namespace),
    )
