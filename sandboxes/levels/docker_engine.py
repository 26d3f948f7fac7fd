"""What is asked of a docker engine. Every call blocks; none may be made on an event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentloop.errors import SandboxError, UserError
from agentloop.process.owned_folders import is_dead, own_label
from agentloop.sandboxes.base import WRITABLE
from agentloop.sandboxes.levels.rootfs import ENVIRONMENT

OWNER_LABEL = "agentloop.owner"
CONTROL = "/run/agentloop"
"""Where a container finds the socket of its owner."""
_GVISOR = "runsc"
_CALL_SECONDS = 60
_GONE = (404, 409)
"""Not found, and a conflict: somebody else removes it already."""
_USER = 1000
_START_ENGINE = (
    "Install and start an engine (Debian: `apt-get install docker.io`, then `systemctl start docker`), let this user "
    "reach it (`usermod --append --groups docker USER`), or set DOCKER_HOST to a socket of this machine."
)
_ENVIRONMENT = {name: value for name, value in ENVIRONMENT.items() if name not in ("PATH", "PYTHONPATH")}


@dataclass(slots=True, frozen=True, kw_only=True)
class ContainerPlan:
    """What all containers of a sandbox have in common."""

    image: str
    runtime: str | None
    command: tuple[str, ...]
    memory_mb: int
    disk_mb: int
    max_processes: int
    cpus: float


@dataclass(slots=True, frozen=True)
class Leftover:
    """A container that the engine has."""

    id: str
    owner: str
    state: str
    """created, running, exited, ... as the engine says."""


class Engine:
    """A connection to the engine of this machine."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def connect(cls) -> Engine:
        """The engine that the docker command line would talk to. Raises `UserError` where there is none."""
        try:
            import docker
        except ImportError as error:
            raise UserError("It needs the Python package docker: `pip install 'agentloop[docker]'`.") from error
        try:
            client = docker.from_env(timeout=_CALL_SECONDS)
            client.ping()
        except _errors() as error:
            raise UserError(f"There is no docker engine to talk to ({_reason(error)}). {_START_ENGINE}") from error
        return cls(client)

    def choose_runtime(self, asked: str | None) -> str | None:
        """gVisor where the engine has it, else the engine's default (None). Raises `UserError` for an unknown one,
        `SandboxError` where it does not answer."""
        known = _call(self._client.info)["Runtimes"]
        if asked is not None and asked not in known:
            raise UserError(f"The docker engine has no runtime {asked!r}; it has {', '.join(sorted(known))}.")
        return asked or (_GVISOR if _GVISOR in known else None)

    def check_image(self, image: str) -> None:
        """Raises `UserError` where it is not there: nothing is pulled behind the user's back. `SandboxError` where the
        engine does not answer."""
        import docker

        try:
            _call(self._client.images.get, image)
        except SandboxError as error:
            if not isinstance(error.__cause__, docker.errors.ImageNotFound):
                raise
            raise UserError(
                f"The docker engine has no image {image!r}. Make one with scripts/sandbox-image, or pull any that has "
                "python3 (3.11 or newer) and name it: `docker pull python:3.12-slim`, image='python:3.12-slim'."
            ) from error

    def create(self, plan: ContainerPlan, control: str) -> Any:
        """A new container, not started; `control` is the directory of the socket. Raises `SandboxError`."""
        scratch = f"rw,exec,nosuid,nodev,mode=1777,uid={_USER},gid={_USER},size={plan.disk_mb}m,nr_inodes=65536"
        return _call(
            self._client.containers.create,
            plan.image,
            entrypoint=list(plan.command),
            command=[],
            environment=_ENVIRONMENT,
            labels={OWNER_LABEL: own_label()},
            user=f"{_USER}:{_USER}",
            working_dir="/",
            hostname="sandbox",
            runtime=plan.runtime,
            network_mode="none",
            read_only=True,
            tmpfs=dict.fromkeys(WRITABLE, scratch),
            shm_size=f"{plan.disk_mb}m",
            volumes={control: {"bind": CONTROL, "mode": "ro"}},
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            mem_limit=f"{plan.memory_mb}m",
            memswap_limit=f"{plan.memory_mb}m",
            pids_limit=plan.max_processes + 1,
            nano_cpus=int(plan.cpus * 1e9),
            ipc_mode="private",
            log_config={"Type": "json-file", "Config": {"max-size": "1m"}},
        )

    def start(self, container: Any) -> int:
        """The pid of its first process on this machine. Raises `SandboxError`."""
        _call(container.start)
        return int(_call(self._client.api.inspect_container, container.id)["State"]["Pid"])

    def last_words(self, container: Any) -> str:
        """What a container that did not come up has printed."""
        return str(_call(container.logs, tail=5).decode(errors="replace")).strip()

    def remove(self, container_id: str) -> None:
        """End it with everything in it; it may be gone already. Raises `SandboxError`."""
        try:
            _call(self._client.api.remove_container, container_id, force=True, v=True)
        except SandboxError as error:
            if getattr(error.__cause__, "status_code", None) not in _GONE:
                raise

    def labelled(self) -> list[Leftover]:
        """All containers that agentloop has made, of whatever owner."""
        found = _call(self._client.api.containers, all=True, filters={"label": OWNER_LABEL})
        return [Leftover(each["Id"], each["Labels"][OWNER_LABEL], each["State"]) for each in found]

    def remove_leftovers(self) -> None:
        """Remove the containers of owners that are dead."""
        for container in self.labelled():
            if is_dead(container.owner):
                self.remove(container.id)

    def close(self) -> None:
        self._client.close()


def _call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Raises `SandboxError` for all that an engine that is closed, hangs or refuses makes the SDK raise."""
    try:
        return function(*arguments, **named)
    except _errors() as error:
        raise SandboxError(f"The docker engine refuses: {_reason(error)}") from error


def _errors() -> tuple[type[Exception], ...]:
    """What the SDK raises, and what it lets through of the libraries below it."""
    import docker
    import requests
    import urllib3

    return docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError


def _reason(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error).strip().rstrip(".")
