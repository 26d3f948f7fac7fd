"""`SandboxClient`: runs code in sandbox daemons, on this or other machines, with the interface of local sandboxes."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

import httpx

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.client import wire
from agentloop.sandboxes.client.balancing import Fleet
from agentloop.sandboxes.client.daemon import Daemon
from agentloop.sandboxes.client.http import AnswerLostError, OverdueError, UnavailableError
from agentloop.sandboxes.client.session import RemoteSession
from agentloop.sandboxes.interface.sandbox import Execution, ExecutionResult, Load, SandboxBusyError, SessionSettings

_logger = logging.getLogger(__name__)


class SandboxClient:
    """Runs code in sandbox daemons: `agentloop tools serve`, or SandboxFusion (no sessions, no echo, no oom flag).

    An execution goes to the least loaded daemon. It has no effect outside its sandbox, so if its daemon cannot be
    reached, dies or is full, it runs again, elsewhere if possible. One client serves many trajectories, in one event
    loop after another.

    `urls`: one address, several separated by commas, or a list. Each must be a single daemon, because a load balancer
    would send the cells of a session to the wrong one. `token`: token of the daemons, by default AGENTLOOP_TOKEN of the
    environment. `packages`, `preload`: packages that code must be able to import; `start` raises for a daemon that
    lacks one, and a daemon that answers later is not used without them. `max_in_flight`: executions that one daemon
    gets at once, by default 2 for each of its slots; others wait in the client. `patience`: seconds that an execution
    waits while no daemon can be reached.

    Raises `UserError` for an invalid URL or token.
    """

    level: ClassVar[str] = "remote"
    max_lost = 5
    """Number of daemons lost during one execution after which the execution counts as the cause."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        packages: Sequence[str] = (),
        preload: Sequence[str] = (),
        max_in_flight: int | None = None,
        patience: float = 60.0,
    ) -> None:
        token = token or os.environ.get("AGENTLOOP_TOKEN") or None
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise UserError("The token of the sandbox daemon must be printable ASCII without spaces.")
        parsed = _parse(urls)
        needed = sorted({*packages, *preload})
        self.daemons = [Daemon(url, token, max_in_flight, needed) for url in parsed]
        self._patience = patience
        self._fleet: Fleet[Daemon] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = False
        self._unwanted: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect to the daemons; a second call does nothing. Daemons that do not answer yet join later.

        Raises `UserError` if none answers, if one is not a sandbox daemon or expects another token, or if one lacks a
        package.
        """
        if self._started:
            return
        self._here()
        async with self._starting:
            if not self._started:
                await self._start()

    async def run(self, execution: Execution, *, max_queue_seconds: float = float("inf")) -> ExecutionResult:
        await self.start()
        fleet = self._here()
        begun = time.monotonic()
        deadline = begun + max_queue_seconds
        lost = attempt = 0
        while True:
            async with fleet.lease(deadline) as daemon:
                now = time.monotonic()
                try:
                    return await daemon.execute(execution, queue=max(deadline - now, 0.0), waited=now - begun)
                except UnavailableError as error:
                    fleet.report_down(daemon, str(error))
                except AnswerLostError as error:
                    fleet.report_down(daemon, str(error))
                    lost += 1
                    if lost == self.max_lost:
                        raise SandboxError(
                            f"A daemon was lost {lost} times while it ran this execution. {daemon.name}: {error}"
                        ) from error
                except OverdueError as error:
                    fleet.report_down(daemon, str(error))
                    raise
                except SandboxBusyError:
                    if time.monotonic() >= deadline:
                        raise
            attempt += 1
            await asyncio.sleep(_pause(attempt))

    async def session(self, settings: SessionSettings | None = None) -> RemoteSession:
        await self.start()
        opening = asyncio.ensure_future(self._open(self._here(), wire.settings_body(settings or SessionSettings())))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Otherwise the session would occupy a place in its daemon until its idle limit.
            self._unwanted.add(task := asyncio.create_task(_close(opening)))
            task.add_done_callback(self._unwanted.discard)
            raise

    def load(self) -> Load:
        """Return the load of the daemons that are up, without the load from other clients."""
        fleet = self._fleet
        up = [daemon for daemon in self.daemons if fleet is None or fleet.is_up(daemon)]
        return Load(
            slots=sum(daemon.slots for daemon in up),
            busy=sum(min(daemon.in_flight, daemon.slots) for daemon in up),
            waiting=sum(max(daemon.in_flight - daemon.slots, 0) for daemon in up) + (fleet.waiting if fleet else 0),
            sessions=sum(len(daemon.sessions) for daemon in up),
        )

    async def close(self) -> None:
        await asyncio.gather(*self._unwanted)
        sessions = [session for daemon in self.daemons for session in daemon.sessions]
        await asyncio.gather(*(session.close() for session in sessions))
        await self._here().close()
        for daemon in self.daemons:
            await daemon.connections.close()
        self._fleet, self._started = None, False

    def _here(self) -> Fleet[Daemon]:
        """Return the fleet of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._fleet is None or self._loop is not loop:
            self._fleet, self._loop, self._starting = Fleet(self.daemons, self._patience), loop, asyncio.Lock()
            for daemon in self.daemons:
                daemon.in_flight = 0
        return self._fleet

    async def _open(self, fleet: Fleet[Daemon], body: bytes) -> RemoteSession:
        while True:
            full: SandboxBusyError | None = None
            async with fleet.lease() as first:
                others = [daemon for daemon in self.daemons if daemon is not first and fleet.is_up(daemon)]
                for daemon in (first, *sorted(others, key=lambda daemon: daemon.load)):
                    try:
                        return RemoteSession(daemon, await daemon.open_session(body), fleet.report_down)
                    except (UnavailableError, AnswerLostError) as error:  # a session that was opened ends when idle
                        fleet.report_down(daemon, str(error))
                    except SandboxBusyError as error:
                        full = error
            if full is not None:
                raise full

    async def _start(self) -> None:
        answering = await asyncio.gather(*(daemon.is_there() for daemon in self.daemons))
        up = [daemon for daemon, answers in zip(self.daemons, answering, strict=True) if answers]
        down = [daemon for daemon in self.daemons if daemon not in up]
        if not up:
            problems = " ".join(f"{daemon.name}: {daemon.problem}" for daemon in down)
            raise UserError(f"No sandbox daemon answers. Start one with `agentloop tools serve`. {problems}")
        if len({daemon.is_fusion for daemon in up}) > 1:
            raise UserError(
                "Some of these sandbox daemons are SandboxFusion and some are `agentloop tools serve`; their results "
                "differ: use one kind."
            )
        await asyncio.gather(*(daemon.check_packages() for daemon in up))
        self._started = True
        for daemon in down:
            _logger.warning("%s does not answer yet; it is used as soon as it does: %s", daemon.name, daemon.problem)
            self._here().report_down(daemon, daemon.problem)


def _pause(attempt: int) -> float:
    """Return the seconds before the next attempt. An execution may wait for hours, so the power is bounded."""
    return random.uniform(0.5, 1.0) * min(0.02 * 2 ** min(attempt, 10), 2.0)


async def _close(opening: asyncio.Future[RemoteSession]) -> None:
    with suppress(SandboxError, UserError):
        await (await opening).close()


def _parse(urls: str | Sequence[str]) -> list[httpx.URL]:
    texts = [text.strip() for text in (urls.split(",") if isinstance(urls, str) else urls)]
    parsed: dict[str, httpx.URL] = {}
    for text in filter(None, texts):
        try:
            url = httpx.URL(text.rstrip("/").removesuffix("/run_code"))
        except httpx.InvalidURL as error:
            raise UserError(f"The sandbox {text!r} is not a URL: {error}.") from error
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise UserError(f"The sandbox {text!r} must be the address of a daemon, for example http://localhost:8080.")
        parsed[str(url)] = url
    if not parsed:
        raise UserError("The list of sandbox daemons is empty: give an address, for example http://localhost:8080.")
    return list(parsed.values())
