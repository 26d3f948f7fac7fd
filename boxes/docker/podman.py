"""`PodmanProvider`: boxes that are containers of podman."""

from __future__ import annotations

import os

from agentloop.boxes.docker.engine import BoxEngine
from agentloop.boxes.docker.provider import DockerProvider
from agentloop.sandboxes.levels.docker_engine import Engine

_COLUMNS = "pid,state,args"
"""Podman's own columns. With options of ps it would run the ps of the box, which an agent may have replaced."""

_START_SERVICE = (
    "Install podman (Debian: `apt-get install podman`) and start its service with `systemctl start podman.socket` "
    "(without root: `systemctl --user start podman.socket`), or set the option `address` of the provider to its socket."
)


class PodmanProvider(DockerProvider):
    """Boxes in containers of podman, whose service (`systemctl start podman.socket`) speaks docker's protocol."""

    def _connect(self) -> BoxEngine:
        folder = "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
        address = self._address or f"unix://{folder}/podman/podman.sock"
        return BoxEngine(Engine.connect(address, f"the service of podman at {address}", _START_SERVICE), _COLUMNS)
