"""The level `auto`: the strongest level that works on this machine, found by trying each."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from agentloop.errors import UserError
from agentloop.registry.options import check_options
from agentloop.sandboxes.interface.sandbox import Execution, ExecutionResult, Load, Sandbox, Session, SessionSettings
from agentloop.sandboxes.levels.registry import AUTOMATIC
from agentloop.sandboxes.levels.slot_template import PreloadError

_log = logging.getLogger(__name__)


class Auto:
    """The strongest level that works, among those that support all the given options.

    `start` raises `UserError` if none works; the message says what each level lacks. It never falls back to `none`.
    """

    def __init__(self, **options: Any) -> None:
        known = sorted({name for level in AUTOMATIC for name in level.options()})
        check_options(options, known, of="sandbox level 'auto'")
        self._options = options
        self._levels = [level for level in AUTOMATIC if set(options) <= set(level.options())]
        if not self._levels:
            each = " ".join(f"{level.name} takes {', '.join(sorted(level.options()))}." for level in AUTOMATIC)
            raise UserError(f"No sandbox level takes the options {', '.join(options)} together. {each}")
        self._levels[0].create(options)  # report an invalid value now, instead of a missing level
        self._chosen: Sandbox | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Lock | None = None

    @property
    def level(self) -> str:
        """Return the name of the chosen level; "auto" before `start`."""
        return self._chosen.level if self._chosen else "auto"

    async def start(self) -> None:
        if self._chosen is None:
            if self._loop is not (loop := asyncio.get_running_loop()):
                self._loop, self._starting = loop, asyncio.Lock()
            assert self._starting is not None
            async with self._starting:
                if self._chosen is None:
                    self._chosen = await self._choose()
        await self._chosen.start()

    async def _choose(self) -> Sandbox:
        reasons: list[str] = []
        for level in self._levels:
            try:
                sandbox = level.create(self._options)
                await sandbox.start()
            except PreloadError:
                raise
            except UserError as error:
                reasons.append(str(error))
                continue
            _log.log(
                logging.WARNING if reasons else logging.INFO,
                "Sandbox level: %s (%s).%s",
                level.name,
                level.protects,
                f" Stronger or faster levels do not work here. {' '.join(reasons)}" if reasons else "",
            )
            return sandbox
        left_out = [level.name for level in AUTOMATIC if level not in self._levels]
        others = f" The levels {', '.join(left_out)} lack some of the options {', '.join(self._options)}." * bool(
            left_out
        )
        raise UserError(
            f"No sandbox level works on this machine, and code never runs without one. {' '.join(reasons)}{others} On "
            "your own machine, for code that you trust, request the level 'none' by name."
        )

    async def run(self, execution: Execution, *, max_queue_seconds: float = float("inf")) -> ExecutionResult:
        return await (await self._started()).run(execution, max_queue_seconds=max_queue_seconds)

    async def session(self, settings: SessionSettings | None = None) -> Session:
        return await (await self._started()).session(settings)

    def load(self) -> Load:
        return self._chosen.load() if self._chosen else Load(slots=0, busy=0, waiting=0, sessions=0)

    async def close(self) -> None:
        if self._chosen is not None:
            chosen, self._chosen = self._chosen, None
            await chosen.close()

    async def _started(self) -> Sandbox:
        if self._chosen is None:
            await self.start()
        assert self._chosen is not None
        return self._chosen
