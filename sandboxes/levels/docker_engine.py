"""Calls to a docker engine. Every call blocks: make none on an event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentloop.errors import SandboxError, UserError
from agentloop.process.owned_folders import is_dead, own_label
from agentloop.sandboxes.inside.isolation.mounts import NETWORK_SETTINGS
from agentloop.sandboxes.interface.sandbox import WRITABLE
from agentloop.sandboxes.levels.rootfs import ENVIRONMENT

OWNER_LABEL = "agentloop.owner"
CONTROL = "/run/agentloop"
"""Directory in a container that holds the socket of its owner."""
_GVISOR = "runsc"
_CALL_SECONDS = 60
_GONE = (404, 409)
"""Status codes for "not found" and for a conflict, which means that the container is being removed already."""
_USER = 1000
_START_ENGINE = (
    "Install and start an engine (Debian: `apt-get install docker.io`, then `systemctl start docker`), let this user "
    "reach it (`usermod --append --groups docker USER`), or set DOCKER_HOST to a socket of this machine."
)
_ENVIRONMENT = {name: value for name, value in ENVIRONMENT.items() if name not in ("PATH", "PYTHONPATH")}


@dataclass(slots=True, frozen=True, kw_only=True)
class ContainerPlan:
    """The settings that all containers of a sandbox share."""

    image: str
    runtime: str | None
    command: tuple[str, ...]
    memory_mb: int
    disk_mb: int
    max_processes: int
    cpus: float


@dataclass(slots=True, frozen=True)
class Leftover:
    """A container made by agentloop."""

    id: str
    owner: str
    state: str
    """State as the engine reports it: created, running, exited, ..."""


class Engine:
    """A connection to the engine of this machine."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @classmethod
    def connect(cls, address: str | None = None, name: str = "a docker engine", fix: str = _START_ENGINE) -> Engine:
        """Connect to an engine, by default the one that the docker command line uses.

        `address` is the URL of a socket, such as unix:///run/podman/podman.sock. `name` and `fix` are for the error:
        what did not answer, and how to start it. Raises `UserError` if none answers.
        """
        try:
            import docker
        except ImportError as error:
            raise UserError("It needs the Python package docker: `pip install 'agentloop[docker]'`.") from error
        try:
            if address is None:
                client = docker.from_env(timeout=_CALL_SECONDS)
            else:
                client = docker.DockerClient(address, timeout=_CALL_SECONDS)
            client.ping()
        except _errors() as error:
            raise UserError(f"Cannot connect to {name} ({_reason(error)}). {fix}") from error
        return cls(client)

    def choose_runtime(self, requested: str | None) -> str | None:
        """Return the requested runtime, else gVisor if the engine has it, else None for the engine's default.

        Raises `UserError` for an unknown runtime, `SandboxError` if the engine does not answer.
        """
        known = call(self.client.info)["Runtimes"]
        if requested is not None and requested not in known:
            raise UserError(f"The docker engine has no runtime {requested!r}; it has {', '.join(sorted(known))}.")
        return requested or (_GVISOR if _GVISOR in known else None)

    def check_image(self, image: str) -> None:
        """Raise `UserError` if the image is missing. It is never pulled without a request of the user.

        Raises `SandboxError` if the engine does not answer.
        """
        import docker

        try:
            call(self.client.images.get, image)
        except SandboxError as error:
            if not isinstance(error.__cause__, docker.errors.ImageNotFound):
                raise
            raise UserError(
                f"The docker engine has no image {image!r}. Make one with scripts/sandbox-image, or pull any that has "
                "python3 (3.11 or newer) and name it: `docker pull python:3.12-slim`, image='python:3.12-slim'."
            ) from error

    def create(self, plan: ContainerPlan, control: str) -> Any:
        """Create a container, not started; `control` is the directory of the socket. Raises `SandboxError`."""
        scratch = f"rw,exec,nosuid,nodev,mode=1777,uid={_USER},gid={_USER},size={plan.disk_mb}m,nr_inodes=65536"
        return call(
            self.client.containers.create,
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
            sysctls={} if plan.runtime == _GVISOR else NETWORK_SETTINGS,
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
        """Start a container and return the host's pid of its first process. Raises `SandboxError`."""
        call(container.start)
        return int(call(self.client.api.inspect_container, container.id)["State"]["Pid"])

    def last_words(self, container: Any) -> str:
        """Return the last output of a container that did not start."""
        return str(call(container.logs, tail=5).decode(errors="replace")).strip()

    def remove(self, container_id: str) -> None:
        """End a container with everything in it, if it still exists. Raises `SandboxError`."""
        try:
            call(self.client.api.remove_container, container_id, force=True, v=True)
        except SandboxError as error:
            if getattr(error.__cause__, "status_code", None) not in _GONE:
                raise

    def labelled(self) -> list[Leftover]:
        """Return all containers that agentloop has created, for any owner."""
        found = call(self.client.api.containers, all=True, filters={"label": OWNER_LABEL})
        return [Leftover(each["Id"], each["Labels"][OWNER_LABEL], each["State"]) for each in found]

    def remove_leftovers(self) -> None:
        """Remove the containers of dead owners."""
        for container in self.labelled():
            if is_dead(container.owner):
                self.remove(container.id)

    def close(self) -> None:
        self.client.close()


def call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call the SDK. Raises `SandboxError` for every error of a closed, hanging or refusing engine."""
    try:
        return function(*arguments, **named)
    except _errors() as error:
        raise SandboxError(f"The docker engine refuses: {_reason(error)}") from error


def _errors() -> tuple[type[Exception], ...]:
    """Return the errors of the SDK and of the libraries below it."""
    import docker
    import requests
    import urllib3

    return docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError


def _reason(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error).strip().rstrip(".")
