"""The isolation level `docker`: a container of a docker engine for every execution and every session.

A container has no network, no capabilities and a read-only image; the engine limits memory, processes, CPU and disk.
Containers are made in advance and used once. With the runtime runsc (gVisor) the code runs on a separate kernel;
without it, on the host's. The engine must run on this machine, since owner and container share a socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import tempfile
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from agentloop.errors import SandboxError, UserError
from agentloop.process import owned_folders
from agentloop.sandboxes.inside import channel
from agentloop.sandboxes.interface.sandbox import (
    WORKING_DIRECTORY,
    Execution,
    ExecutionResult,
    Session,
    SessionSettings,
)
from agentloop.sandboxes.levels.docker_engine import CONTROL, ContainerPlan, Engine
from agentloop.sandboxes.levels.seccomp import build_filter
from agentloop.sandboxes.worlds import boot
from agentloop.sandboxes.worlds.cgroups import Cgroup
from agentloop.sandboxes.worlds.pooled import PooledSandbox
from agentloop.sandboxes.worlds.runs import given
from agentloop.sandboxes.worlds.world import World

_logger = logging.getLogger(__name__)

DEFAULT_IMAGE = "agentloop-sandbox"
_SOCKET = "socket"
_LONGEST_SOCKET = len(f"tmp12345678/{_SOCKET}")
_FOLDER = "agentloop-docker-"
_SETUP_SECONDS = 60.0
_CGROUPS = Path("/sys/fs/cgroup")


class Docker(PooledSandbox):
    """Executions in containers.

    `image`: an image with python3 (3.11 or newer) and everything that the code may use. `runtime`: a runtime of the
    engine, by default gVisor (runsc) if the engine has it. `slots`: executions at once, by default twice the cores.
    `spare`: containers kept ready, by default as many as slots. `memory_mb`: largest memory limit of an execution, in
    MiB. `cpus`: CPUs of one container. `max_processes`, `disk_mb`, `max_sessions`: as in `Slots`.
    """

    level: ClassVar[str] = "docker"

    def __init__(
        self,
        *,
        image: str = DEFAULT_IMAGE,
        runtime: str | None = None,
        slots: int | None = None,
        spare: int | None = None,
        memory_mb: int = 4096,
        cpus: float = 1.0,
        max_processes: int = 64,
        disk_mb: int = 256,
        max_sessions: int = 64,
    ) -> None:
        slots = slots or 2 * (os.cpu_count() or 1)
        super().__init__(slots=slots, max_processes=max_processes, disk_mb=disk_mb, max_sessions=max_sessions)
        if spare is not None and spare < 0:
            raise UserError(f"spare must be 0 or more, got {spare}.")
        self._spare = slots if spare is None else spare
        self._plan = ContainerPlan(
            image=image,
            runtime=runtime,
            command=tuple(boot.container_command(f"{CONTROL}/{_SOCKET}")),
            memory_mb=memory_mb,
            disk_mb=disk_mb,
            max_processes=max_processes,
            cpus=cpus,
        )
        self._engine: Engine | None = None
        self._stock: deque[asyncio.Task[World]] = deque()
        self._containers: set[Container] = set()
        self._folder = Path()

    @property
    def runtime(self) -> str:
        """Return the runtime of the containers; empty for the engine's default. Known after `start`."""
        return self._plan.runtime or ""

    async def run(self, execution: Execution, *, max_queue_seconds: float = float("inf")) -> ExecutionResult:
        self._check_memory(execution.memory_mb)
        return await super().run(execution, max_queue_seconds=max_queue_seconds)

    async def session(self, settings: SessionSettings | None = None) -> Session:
        if settings is not None:
            self._check_memory(settings.memory_mb)
        return await super().session(settings)

    def _check_memory(self, memory_mb: int) -> None:
        if memory_mb > self._plan.memory_mb:
            raise UserError(
                f"memory_mb={memory_mb} is more than the containers of this sandbox have ({self._plan.memory_mb}): "
                "create the sandbox with a larger memory_mb."
            )

    async def _open(self) -> None:
        try:
            self._engine, self._plan = await asyncio.to_thread(_connect, self._plan)
        except (SandboxError, UserError) as error:
            raise self._unavailable(str(error)) from error
        try:
            self._folder = await asyncio.to_thread(owned_folders.make, _FOLDER, longest_socket=_LONGEST_SOCKET)
        except OSError as error:
            raise self._unavailable(f"its folder cannot be made: {error}.") from error
        self._creating = asyncio.Semaphore(os.cpu_count() or 1)

    async def _make(self) -> World:
        while True:
            task = self._stock.popleft() if self._stock else asyncio.create_task(self._create())
            self._refill()
            try:
                world = await asyncio.shield(task)
            except asyncio.CancelledError:
                if not task.cancelled():  # the engine makes the container all the same: keep it for the next caller
                    self._stock.appendleft(task)
                raise
            if world.alive:
                return world

    def _refill(self) -> None:
        while len(self._stock) < self._spare:
            self._stock.append(asyncio.create_task(self._create()))

    async def _create(self) -> World:
        """Start a container and return its world. Raises `SandboxError`."""
        assert self._engine is not None
        container = None
        folder, listener = self._listen()
        with listener:
            async with self._creating:
                try:
                    container = Container(
                        self._engine, await asyncio.to_thread(self._engine.create, self._plan, folder)
                    )
                    self._containers.add(container)
                    container.ended.add_done_callback(lambda _: self._forget(container, folder))
                    pid = await asyncio.to_thread(self._engine.start, container.handle)
                    control = await self._connected(listener, container)
                except BaseException:
                    if container is not None:
                        container.kill()
                    raise
        try:
            cgroup = _memory_of(pid)
        except OSError as error:
            control.close()
            container.kill()
            raise SandboxError("A container ended before it was used.") from error
        world = World(control, container, cgroup)
        if cgroup is not None:
            world.gone = lambda: _release(cgroup)
        await world.ready(_SETUP_SECONDS)
        return world

    def _listen(self) -> tuple[str, socket.socket]:
        """Return a new folder with a socket for a container. Raises `SandboxError`."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            folder = tempfile.mkdtemp(dir=self._folder)
            os.chmod(folder, 0o711)  # the container runs as another user, and the parent folder keeps other users out
            listener.bind(f"{folder}/{_SOCKET}")
            os.chmod(f"{folder}/{_SOCKET}", 0o666)
            listener.listen(1)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise SandboxError(f"The folder of a container cannot be made in {self._folder}: {error}.") from error
        return folder, listener

    async def _connected(self, listener: socket.socket, container: Container) -> socket.socket:
        """Accept the connection of the interpreter in the container and send it its program."""
        assert self._engine is not None
        try:
            async with asyncio.timeout(_SETUP_SECONDS):
                control, _ = await asyncio.get_running_loop().sock_accept(listener)
        except TimeoutError as error:
            words = await asyncio.to_thread(self._engine.last_words, container.handle)
            raise SandboxError(f"No Python started in a container within {_SETUP_SECONDS:g} s. {words}") from error
        # Linux would count processes over all containers, which share a user; the engine counts them per container.
        arguments = {"directory": WORKING_DIRECTORY, "filter": build_filter(), "counts_processes": False}
        with given(boot.source("single", arguments, portable=True)) as fds:
            channel.send(control, {}, fds)
        return control

    def _forget(self, container: Container | None, folder: str) -> None:
        if container is not None:
            self._containers.discard(container)
        shutil.rmtree(folder, ignore_errors=True)

    def _abandon(self) -> None:
        super()._abandon()
        if self._loop is not None and self._loop.is_closed():
            self._stock.clear()

    async def _shut(self) -> None:
        stock, self._stock = list(self._stock), deque()
        for made in await asyncio.gather(*stock, return_exceptions=True):
            if isinstance(made, World):
                made.destroy()
        for container in list(self._containers):
            container.kill()
        if self._containers:
            await asyncio.wait([container.ended for container in self._containers], timeout=_SETUP_SECONDS)
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await asyncio.to_thread(engine.close)
            shutil.rmtree(self._folder, ignore_errors=True)


class Container:
    """The first process of a world in a container; it ends with its container."""

    def __init__(self, engine: Engine, handle: Any) -> None:
        self.handle = handle
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._removal: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def kill(self) -> None:
        # Without an event loop, the container ends when its socket closes. A later start removes it.
        if self._removal is None and not self._loop.is_closed():
            self._removal = self._loop.create_task(self._remove())

    async def _remove(self) -> None:
        try:
            await asyncio.to_thread(self._engine.remove, self.handle.id)
        except SandboxError as error:  # it ends when its socket closes; the next start removes it
            _logger.warning("A docker container could not be removed: %s", error)
        finally:
            if not self.ended.done():
                self.ended.set_result(None)


def _connect(plan: ContainerPlan) -> tuple[Engine, ContainerPlan]:
    engine = Engine.connect()
    engine.check_image(plan.image)
    engine.remove_leftovers()
    return engine, replace(plan, runtime=engine.choose_runtime(plan.runtime))


def _memory_of(pid: int) -> Cgroup | None:
    """Return the container's cgroup if this process may set its limits. The engine's limit applies in any case."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            directory, limit, version = _CGROUPS / "memory" / path.lstrip("/"), "memory.limit_in_bytes", 1
        elif not controllers and (_CGROUPS / "cgroup.controllers").exists():
            directory, limit, version = _CGROUPS / path.lstrip("/"), "memory.max", 2
        else:
            continue
        if os.access(directory / limit, os.W_OK):
            return Cgroup({"memory": directory, "pids": directory}, version)
    return None


def _release(cgroup: Cgroup) -> None:
    """Close the descriptor that watched the cgroup; the engine removes the cgroup."""
    cgroup.remove()
