"""The level `none`: no isolation, for developing with trusted code. It must be requested by name."""

from __future__ import annotations

from typing import ClassVar

from agentloop.sandboxes.levels.directories import DirectorySandbox


class NoIsolation(DirectorySandbox):
    """Executions as processes of this user, each in its own directory. They can see and change this machine.

    Limits on time, memory (per process) and output apply. Paths below /tmp and /mnt are the machine's own.
    """

    level: ClassVar[str] = "none"

    def __init__(
        self, *, slots: int | None = None, max_processes: int = 64, disk_mb: int = 256, max_sessions: int = 256
    ) -> None:
        super().__init__(slots=slots, max_processes=max_processes, disk_mb=disk_mb, max_sessions=max_sessions)
