"""`SandboxClient`: sandboxes in daemons, here or on other machines, behind the protocol of those in the process."""

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
from agentloop.sandboxes.base import Execution, ExecutionResult, Load, SandboxBusyError, SessionSettings
from agentloop.sandboxes.client import wire
from agentloop.sandboxes.client.balancing import Fleet
from agentloop.sandboxes.client.daemon import Daemon
from agentloop.sandboxes.client.http import AnswerLostError, OverdueError, UnavailableError
from agentloop.sandboxes.client.session import RemoteSession

_logger = logging.getLogger(__name__)

_MAX_LOST = 5
"""Daemons that may go away while they run one execution; then it is held for the reason."""


class SandboxClient:
    """Runs code in sandbox daemons: `agentloop tools serve`, or SandboxFusion (no sessions, no echo, no oom flag).

    An execution goes to the least loaded daemon. It has no effect outside of its sandbox, so that it is run again,
    elsewhere if possible, where its daemon cannot be reached, goes away or is full. One client serves many
    trajectories, in one event loop after another.
    """

    level: ClassVar[str] = "remote"

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
        """`urls`: one, several between commas, or a list, each of one daemon: what balances between several sends the
        cells of a session to the wrong one. `token`: what the daemons were started with; by default the
        environment's AGENTLOOP_TOKEN. `packages`, `preload`: what code may import; the daemons bring it, `start` looks.
        `max_in_flight`: executions that one daemon has at once, by default 2 for each of its slots: the others wait
        here. `patience`: seconds that an execution waits while no daemon can be reached.

        Raises `UserError` for what is no URL.
        """
        token = token or os.environ.get("AGENTLOOP_TOKEN") or None
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise UserError("The token of the sandbox daemon must be printable ASCII without spaces.")
        parsed = _parse(urls)
        self._daemons = [Daemon(url, token, max_in_flight) for url in parsed]
        self._packages = sorted({*packages, *preload})
        self._patience = patience
        self._fleet: Fleet[Daemon] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = False
        self._unwanted: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Look who answers; does nothing the second time. Daemons that do not answer are used when they do.

        Raises `UserError` where none answers, where one is no sandbox daemon or wants another token, and where one
        lacks a package.
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
                    if lost == _MAX_LOST:
                        raise SandboxError(
                            f"{lost} times a daemon went away while it ran this execution. {daemon.name}: {error}"
                        ) from error
                except OverdueError as error:
                    fleet.report_down(daemon, str(error))
                    raise
                except SandboxBusyError:
                    if time.monotonic() >= deadline:
                        raise
            attempt += 1
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(0.02 * 2**attempt, 2.0))

    async def session(self, settings: SessionSettings | None = None) -> RemoteSession:
        await self.start()
        opening = asyncio.ensure_future(self._open(self._here(), wire.settings_body(settings or SessionSettings())))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Nobody would close it, and it would take a place in its daemon for as long as it may be idle.
            self._unwanted.add(task := asyncio.create_task(_close(opening)))
            task.add_done_callback(self._unwanted.discard)
            raise

    def load(self) -> Load:
        """Of the daemons that are up, as far as this client knows: what others ask of them is not in it."""
        fleet = self._fleet
        up = [daemon for daemon in self._daemons if fleet is None or fleet.is_up(daemon)]
        return Load(
            slots=sum(daemon.slots for daemon in up),
            busy=sum(min(daemon.in_flight, daemon.slots) for daemon in up),
            waiting=sum(max(daemon.in_flight - daemon.slots, 0) for daemon in up) + (fleet.waiting if fleet else 0),
            sessions=sum(len(daemon.sessions) for daemon in up),
        )

    async def close(self) -> None:
        await asyncio.gather(*self._unwanted)
        sessions = [session for daemon in self._daemons for session in daemon.sessions]
        await asyncio.gather(*(session.close() for session in sessions))
        await self._here().close()
        for daemon in self._daemons:
            await daemon.connections.close()
        self._fleet, self._started = None, False

    def _here(self) -> Fleet[Daemon]:
        """The fleet of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._fleet is None or self._loop is not loop:
            self._fleet, self._loop, self._starting = Fleet(self._daemons, self._patience), loop, asyncio.Lock()
            for daemon in self._daemons:
                daemon.in_flight = 0
        return self._fleet

    async def _open(self, fleet: Fleet[Daemon], body: bytes) -> RemoteSession:
        while True:
            full: SandboxBusyError | None = None
            async with fleet.lease() as first:
                others = [daemon for daemon in self._daemons if daemon is not first and fleet.is_up(daemon)]
                for daemon in (first, *sorted(others, key=lambda daemon: daemon.load)):
                    try:
                        return RemoteSession(daemon, await daemon.open_session(body), fleet.report_down)
                    except (UnavailableError, AnswerLostError) as error:  # if it was opened, it ends when idle
                        fleet.report_down(daemon, str(error))
                    except SandboxBusyError as error:
                        full = error
            if full is not None:
                raise full

    async def _start(self) -> None:
        answering = await asyncio.gather(*(daemon.is_there() for daemon in self._daemons))
        up = [daemon for daemon, answers in zip(self._daemons, answering, strict=True) if answers]
        down = [daemon for daemon in self._daemons if daemon not in up]
        if not up:
            problems = " ".join(f"{daemon.name}: {daemon.problem}" for daemon in down)
            raise UserError(f"No sandbox daemon answers. Start one with `agentloop tools serve`. {problems}")
        if len({daemon.is_fusion for daemon in up}) > 1:
            raise UserError(
                "Some of these sandbox daemons are SandboxFusion and some are `agentloop tools serve`, which do not "
                "give the same results: use one kind."
            )
        await asyncio.gather(*(daemon.check_packages(self._packages) for daemon in up))
        self._started = True
        for daemon in down:
            _logger.warning("%s does not answer, and is used when it does: %s", daemon.name, daemon.problem)
            self._here().report_down(daemon, daemon.problem)


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
            raise UserError(f"The sandbox {text!r} is no URL: {error}.") from error
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise UserError(f"The sandbox {text!r} must be the address of a daemon, as http://localhost:8080.")
        parsed[str(url)] = url
    if not parsed:
        raise UserError("No address of a sandbox daemon was given: write it as http://localhost:8080.")
    return list(parsed.values())
