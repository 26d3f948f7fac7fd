"""`PodmanProvider`: boxes that are containers of podman."""

from __future__ import annotations

import os

from agentloop.boxes.docker.engine import BoxEngine
from agentloop.boxes.docker.provider import DockerProvider

_COLUMNS = "pid,state,args"
"""Podman's own columns. With options of ps it would run the ps of the box, which an agent may have replaced."""


class PodmanProvider(DockerProvider):
    """Boxes in containers of podman, whose service (`systemctl start podman.socket`) speaks docker's protocol."""

    def _connect(self) -> BoxEngine:
        folder = "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
        return BoxEngine(self._address or f"unix://{folder}/podman/podman.sock", _COLUMNS)
