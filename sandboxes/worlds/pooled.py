"""`PooledSandbox`: the base of all levels, which differ only in how they make a world."""

from __future__ import annotations

import asyncio
import os
import time
from typing import ClassVar

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface import languages
from agentloop.sandboxes.interface.sandbox import (
    Execution,
    ExecutionResult,
    Load,
    SandboxBusyError,
    Session,
    SessionSettings,
)
from agentloop.sandboxes.worlds import runs
from agentloop.sandboxes.worlds.pool import Pool
from agentloop.sandboxes.worlds.session import WorldSession
from agentloop.sandboxes.worlds.world import World

SLOTS_PER_CORE = 4
USER_NAMESPACES = (
    "If they are forbidden, set the sysctls user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 "
    "(old Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 24.04); in a container, `docker run "
    "--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
    "systempaths=unconfined`."
)
"""Hint on how to allow user namespaces, for the levels that need them."""


class PooledSandbox:
    """Base of an isolation level. A subclass implements `_open`, `_make` (for each world) and `_shut`."""

    level: ClassVar[str]
    requires: ClassVar[str] = ""
    """Requirements of the level, added to the error if it does not work."""
    reusable: ClassVar[bool] = False
    """Whether a world can be cleaned and used again."""

    def __init__(self, *, slots: int | None, max_processes: int, disk_mb: int, max_sessions: int) -> None:
        for name, value in (("max_processes", max_processes), ("disk_mb", disk_mb), ("max_sessions", max_sessions)):
            if value < 1:
                raise UserError(f"{name} must be at least 1, got {value}.")
        if slots is not None and slots < 1:
            raise UserError(f"slots must be at least 1, got {slots}.")
        self._size = slots or SLOTS_PER_CORE * (os.cpu_count() or 1)
        self._bounds = runs.Bounds(max_processes, disk_mb)
        self._max_sessions = max_sessions
        self._sessions: set[WorldSession] = set()
        self._opening = 0
        self._pool: Pool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._programs: dict[str, set[str]] = {}
        self._starting: asyncio.Lock | None = None

    async def _open(self) -> None:
        """Prepare to make worlds. Raises `UserError` if this machine cannot."""
        raise NotImplementedError

    async def _make(self) -> World:
        """Make a clean world. Raises `SandboxError`."""
        raise NotImplementedError

    async def _shut(self) -> None:
        """Release everything that `_open` made."""
        raise NotImplementedError

    def _usable(self) -> bool:
        """Return whether the resources of `_open` still work."""
        return True

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._pool is not None and self._loop is loop and self._usable():
            return
        if self._loop is not loop:
            self._loop, self._starting = loop, asyncio.Lock()
            self._abandon()
        assert self._starting is not None
        async with self._starting:
            if self._pool is not None and self._usable():
                return
            self._abandon()
            await self._shut()
            await self._open()
            pool = Pool(self._size, self._make)
            try:
                await self._probe(pool)
            except BaseException:
                pool.close()
                await self._shut()
                raise
            self._pool = pool

    async def _probe(self, pool: Pool) -> None:
        """Run a real execution, because too many settings (sysctl, AppArmor, seccomp) can forbid a level."""
        try:
            async with pool.lease(float("inf")) as world:
                probe = Execution(code="print(6 * 7)", timeout=30.0)
                result = await runs.run(world, self._bounds, probe, reusable=self.reusable)
                self._give_back(world)
        except SandboxError as error:
            raise self._unavailable(str(error)) from error
        if result.stdout != "42\n":
            raise self._unavailable(f"Python fails in it: {result.stderr.strip()}.")

    def _unavailable(self, reason: str) -> UserError:
        text = f"The sandbox level {self.level!r} does not work on this machine: {reason} {self.requires}"
        return UserError(text.rstrip())

    async def run(self, execution: Execution, *, max_queue_seconds: float = float("inf")) -> ExecutionResult:
        await self.start()
        assert self._pool is not None
        start = time.monotonic()
        async with self._pool.lease(max_queue_seconds) as world:
            waited = time.monotonic() - start
            try:
                await self._check_programs(world, execution.language)
                result = await runs.run(world, self._bounds, execution, reusable=self.reusable)
            finally:
                self._give_back(world)
        object.__setattr__(result, "queue_seconds", waited)
        return result

    def _give_back(self, world: World) -> None:
        if not self.reusable:
            world.destroy()

    async def _check_programs(self, world: World, name: str) -> None:
        if name == "python":
            return
        language = languages.find(name)
        needed = [*language.programs, *([language.module] if language.module else [])]
        if name not in self._programs:
            self._programs[name] = await world.find(needed)
        for each in needed:
            if each not in self._programs[name]:
                raise language.missing(each)

    async def session(self, settings: SessionSettings | None = None) -> Session:
        await self.start()
        if len(self._sessions) + self._opening >= self._max_sessions:
            raise SandboxBusyError(f"{self._max_sessions} sessions are open, which is the maximum: close one.")
        self._opening += 1
        try:
            session = WorldSession(
                await self._make(), settings or SessionSettings(), self._bounds, self._sessions.discard
            )
            self._sessions.add(session)
            try:
                await session.open()
            except BaseException:
                await session.close()
                raise
        finally:
            self._opening -= 1
        return session

    def load(self) -> Load:
        pool = self._pool
        return Load(
            slots=self._size,
            busy=pool.busy if pool else 0,
            waiting=pool.waiting if pool else 0,
            sessions=len(self._sessions),
        )

    async def close(self) -> None:
        for session in list(self._sessions):
            await session.close()
        self._abandon()
        await self._shut()

    def _abandon(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        self._sessions.clear()
