"""`WorkerPool`: the processes of one program, and the episodes that they serve.

    pool = pool_of(Program("nim", python, Path("worker.py")), processes=2)
    async with pool.episode({"seed": 1}, seconds=60) as game:      # or: await pool.start(...), await game.close()
        print(game.first)                                          # the result of `start`
        result = await game.step({"move": "[1 2]"})

A pool starts processes when episodes need them, and gives a new episode to the process with the fewest. The next
episode replaces a process that has died.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

from agentloop.envs.workers.process import Program, WorkerProcess
from agentloop.errors import EnvError, UserError
from agentloop.process.blocking import run_blocking

_POOLS: dict[asyncio.AbstractEventLoop, dict[tuple[str, int, bool], WorkerPool]] = {}
_names = itertools.count()


class WorkerEpisode:
    """One episode in a process of a pool."""

    def __init__(self, process: WorkerProcess, pool: WorkerPool, seconds: float | None) -> None:
        self._process = process
        self._pool = pool
        self._seconds = seconds
        self._name = str(next(_names))
        self._begun = self._closed = False
        self.first: Any = None
        """Result of `Worker.start`."""

    async def start(self, arguments: Mapping[str, Any]) -> None:
        """Begin. Raises `EnvError`."""
        await self._process.ready()
        self._begun = True
        self.first = await self._ask("start", arguments=dict(arguments))

    async def step(self, arguments: Mapping[str, Any], *, bounded: bool = True) -> Any:
        """Return the result of the next step. Raises `EnvError`. Without `bounded` a step may take any time."""
        return await self._ask("step", bounded=bounded, arguments=dict(arguments))

    async def close(self) -> None:
        """Release the episode. Do nothing if it was released, or if the process has died."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._begun and self._process.ended is None:
                await self._ask("close")
        except EnvError:
            if self._process.ended is None:
                raise  # `close` itself raised, or the process has died and the episode with it
        finally:
            self._pool.give_back(self._process)

    async def _ask(self, op: str, *, bounded: bool = True, **fields: Any) -> Any:
        seconds = self._seconds if bounded else None
        return await self._process.ask(op, seconds=seconds, episode=self._name, **fields)


class WorkerPool:
    """At most `processes` processes of a program. With `exclusive`, each serves one episode at a time; others wait."""

    def __init__(self, program: Program, *, processes: int = 1, exclusive: bool = False) -> None:
        self.program = program
        self._size = processes
        self._exclusive = exclusive
        self._room = asyncio.Semaphore(processes)
        self._processes: list[WorkerProcess] = []

    async def start(self, arguments: Mapping[str, Any], *, seconds: float | None) -> WorkerEpisode:
        """Begin an episode with the `arguments` of `Worker.start`. Raises `EnvError`.

        `seconds` limits each call. A call that takes longer fails, with all episodes of its process. None means no
        limit.
        """
        if self._exclusive:
            await self._room.acquire()
        try:
            process = self._process()
        except BaseException:
            if self._exclusive:
                self._room.release()
            raise
        process.load += 1
        episode = WorkerEpisode(process, self, seconds)
        try:
            await episode.start(arguments)
        except BaseException:
            await episode.close()
            raise
        return episode

    @asynccontextmanager
    async def episode(self, arguments: Mapping[str, Any], *, seconds: float | None) -> AsyncIterator[WorkerEpisode]:
        """Begin an episode like `start`, and close it at the end of the block."""
        episode = await self.start(arguments, seconds=seconds)
        try:
            yield episode
        finally:
            await episode.close()

    async def rows(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the rows that `Worker.rows` yields. Raises `EnvError`."""
        process = self._process()
        await process.ready()
        name, rows, is_more = f"rows-{next(_names)}", [], True
        while is_more:
            part = await process.ask("rows", seconds=None, episode=name, arguments=dict(arguments))
            rows += part["rows"]
            is_more = part["more"]
        return rows

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.end("it was closed")
        self._processes = []

    def give_back(self, process: WorkerProcess) -> None:
        """End the use of a process by an episode."""
        process.load -= 1
        if self._exclusive:
            self._room.release()

    def _process(self) -> WorkerProcess:
        """Return the process for the next episode, and start one if necessary. Raises `EnvError`."""
        self._processes = [process for process in self._processes if process.ended is None]
        least = min(self._processes, key=lambda process: process.load, default=None)
        if least is None or (least.load and len(self._processes) < self._size):
            least = WorkerProcess(self.program)
            self._processes.append(least)
        return least


def check_limits(name: str, *, processes: int, step_timeout: float) -> None:
    """Check the options of an environment that plays in a pool. Raises `UserError`."""
    if processes < 1:
        raise UserError(f"`processes` of {name} must be at least 1, got {processes}.")
    if not step_timeout > 0:
        raise UserError(f"`step_timeout` of {name} must be above 0, got {step_timeout}.")


def pool_of(program: Program, *, processes: int = 1, exclusive: bool = False) -> WorkerPool:
    """Return the pool of a program in the running event loop. Equal arguments give the same pool."""
    for loop in [loop for loop in _POOLS if loop.is_closed()]:
        _close(loop)
    pools = _POOLS.setdefault(asyncio.get_running_loop(), {})
    key = (program.key, processes, exclusive)
    if key not in pools:
        pools[key] = WorkerPool(program, processes=processes, exclusive=exclusive)
    return pools[key]


def close_pools() -> None:
    """End the processes of the running event loop."""
    _close(asyncio.get_running_loop())


def _close(loop: asyncio.AbstractEventLoop) -> None:
    for pool in _POOLS.pop(loop, {}).values():
        pool.close()


def options_of(given: str | Sequence[str] | Mapping[str, Any], *, key: str) -> Mapping[str, Any]:
    """Return id -> options for an id, a list of ids or such a mapping. Raises `UserError` for a repeated id."""
    names = [given] if isinstance(given, str) else given
    if isinstance(names, Mapping):
        return names
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"`{key}` has {twice[0]!r} several times: name it once.")
    return dict.fromkeys(names)


def rows_of(program: Program, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `Worker.rows(**arguments)` of a program, which runs in a temporary process.

    Raises `UserError` if the package does not work or refuses the arguments.
    """

    async def found() -> list[dict[str, Any]]:
        with closing(WorkerPool(program)) as pool:
            return await pool.rows(arguments)

    try:
        yield from run_blocking(found)
    except EnvError as error:
        raise UserError(f"The rows of {program.name} cannot be created: {error}") from error


def check_starts(program: Program, episodes: Mapping[str, Mapping[str, Any]], *, seconds: float) -> None:
    """Begin episodes (description -> arguments of `Worker.start`) in a temporary process, and close them.

    Raises `UserError` with the description of the first that cannot begin.
    """

    async def begin_all() -> None:
        with closing(WorkerPool(program)) as pool:
            for described, arguments in episodes.items():
                try:
                    async with pool.episode(arguments, seconds=seconds):
                        pass
                except EnvError as error:
                    raise UserError(f"No episode of {described} can begin: {error}") from error

    if episodes:
        run_blocking(begin_all)
