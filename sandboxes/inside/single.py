"""A world that is used once: inside isolation that others set up, or in a directory without namespaces."""

from __future__ import annotations

import _signal
import os
import sys
from _socket import socket

from agentloop.sandboxes.inside import program
from agentloop.sandboxes.inside.isolation import cleanup, confinement, libc
from agentloop.sandboxes.inside.world import World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(control_fd: int, plan: dict[str, Any]) -> None:
    """Serve one world.

    `plan` holds the working `directory` and, if the level has them: the seccomp `filter` of steps; `restrict`, a module
    with a function of that name and its arguments, which steps call; `enclose`, a module whose function of that name
    encloses the whole world and returns a function that kills everything in it; `counts_processes` and `user` of
    `Confinement`.
    """
    os.set_inheritable(control_fd, False)
    control = socket(fileno=control_fd)
    program.start_of_interpreter()
    has_namespace = os.getpid() == 1
    if has_namespace:  # the kernel blocks signals to it that have no handler
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    else:
        libc.become_subreaper()
    if plan.get("user") is not None:  # this is root: processes that become another user must not get rights back
        libc.drop_bounding_set()
    libc.set_dumpable(False)
    try:
        World(control, _confinement(plan, has_namespace)).serve()
    finally:
        if not has_namespace:
            cleanup.remove_directory(plan["directory"])


def _confinement(plan: dict[str, Any], has_namespace: bool) -> confinement.Confinement:
    restrict = confinement.nothing
    if plan.get("restrict"):
        module, arguments = plan["restrict"]
        rules = sys.modules[module]

        def restrict() -> None:
            rules.restrict(**arguments)

    kill = cleanup.kill_namespace if has_namespace else cleanup.kill_descendants
    if plan.get("enclose"):
        kill = sys.modules[plan["enclose"]].enclose()
    return confinement.Confinement(
        directory=plan["directory"],
        user=plan.get("user"),
        filter=plan.get("filter", b""),
        restrict=restrict,
        kill=kill,
        counts_processes=plan.get("counts_processes", has_namespace),
    )
