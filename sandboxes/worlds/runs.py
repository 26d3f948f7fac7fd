"""Run an `Execution` as steps of a world and return an `ExecutionResult`."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from agentloop.errors import SandboxError
from agentloop.sandboxes.interface import languages
from agentloop.sandboxes.interface.sandbox import Execution, ExecutionResult, ProcessResult
from agentloop.sandboxes.worlds.streams import Drain, memory_file
from agentloop.sandboxes.worlds.world import BrokenWorldError, Step, StepEnd, World

_FILE = re.compile(rb"(\d{1,9}) (-1|\d{1,15})")
_OUT_OF_MEMORY = re.compile(r"^\S*MemoryError\b")
_KILL_SECONDS = 10.0
_FETCH_SECONDS = 60.0
_HEADER_BYTES = 32
_KILLED = 137
"""Exit status of a program that SIGKILL ended."""
_CORES = os.cpu_count() or 1


@dataclass(slots=True, frozen=True)
class Bounds:
    """Limits on every execution of a sandbox, independent of its request."""

    max_processes: int
    disk_mb: int

    def limits(self, world: World, memory_mb: int, seconds: float | None, *, python: bool) -> dict[str, int]:
        """Return the resource limits of one process.

        Python turns its data limit into a `MemoryError`, from which a model learns more than from a kill. Other
        runtimes reserve more than they use, so they have this limit only if no cgroup counts all processes together.
        """
        limits = {"processes": self.max_processes, "file_size": self.disk_mb << 20, "open_files": 1024}
        if seconds is not None:  # CPU time can exceed the wall clock by the number of cores
            limits["cpu_seconds"] = _CORES * (math.ceil(seconds) + 1)
        if python or world.cgroup is None:
            limits["data"] = memory_mb << 20
        if world.cgroup is None:
            limits["address_space"] = max(4 * memory_mb << 20, 4 << 30)
        return limits


def encode(text: str | bytes) -> bytes:
    """Encode text, lone surrogates included."""
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text


def named(files: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """Return files as pairs of normalized path and content."""
    return [(str(PurePosixPath(path)), content) for path, content in files.items()]


@contextmanager
def given(*fds: int) -> Iterator[tuple[int, ...]]:
    """Close this process's copies of descriptors after the block has sent them."""
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


async def run(world: World, bounds: Bounds, execution: Execution, *, reusable: bool) -> ExecutionResult:
    """Run an execution. If cancelled, end its code.

    Raises `SandboxError`, and `UserError` if the files cannot be written. If the code breaks its world, that is no
    error: the code counts as killed.
    """
    language = languages.find(execution.language)
    limit_memory(world, execution.memory_mb)
    files = [*named(execution.files), (language.main, encode(language.source(execution.code)))]
    runner = _Runner(world, bounds, execution, last=reusable and not execution.fetch_files)
    compilation = None
    if language.compile:
        compilation = await runner.process(list(language.compile), files, execution.compile_timeout)
        if not compilation.ok:
            return _result(compilation, compilation)
        files = []
    argv = [] if language.name == "python" else list(language.run)
    outcome = await runner.process(argv, files, execution.timeout, stdin=execution.stdin or b"", final=True)
    fetched: dict[str, bytes] = {}
    left_out = False
    if execution.fetch_files:
        try:
            fetched, left_out = await fetch(world, bounds, execution.fetch_files, execution.fetch_bytes, last=reusable)
        except BrokenWorldError as error:
            outcome = _broken(error, outcome)
    return _result(outcome, compilation, fetched, left_out)


def limit_memory(world: World, megabytes: int) -> None:
    """Limit the memory of a world. Raises `SandboxError`."""
    try:
        if world.cgroup is not None:
            world.cgroup.limit(megabytes << 20)
    except OSError as error:
        world.destroy()
        raise SandboxError(f"The memory of the sandbox cannot be limited: {error}.") from error


@dataclass(slots=True, frozen=True)
class _Runner:
    world: World
    bounds: Bounds
    execution: Execution
    last: bool

    async def process(
        self,
        argv: list[str],
        files: Sequence[tuple[str, bytes]],
        seconds: float,
        *,
        stdin: str | bytes = b"",
        final: bool = False,
    ) -> ProcessResult:
        """Write `files`, then run a command, or the warm Python if there is none."""
        execution = self.execution
        with ExitStack() as stack:
            out, errors = Drain(execution.output_bytes), Drain(execution.output_bytes)
            stack.callback(out.close)
            stack.callback(errors.close)
            fds = {"stdout": out.writer, "stderr": errors.writer}
            if stdin:
                fds["stdin"] = memory_file([encode(stdin)])
            try:
                with given(*fds.values()):
                    step = self.world.start(
                        "execute" if argv else "python",
                        fds,
                        timeout=seconds,
                        limits=self.bounds.limits(self.world, execution.memory_mb, seconds, python=not argv),
                        files=files,
                        last=self.last and final,
                        argv=argv,
                        echo=execution.echo,
                    )
                end = await self._end(step)
            except BrokenWorldError as error:
                stdout, stderr = (drain.finish().decode(errors="replace") for drain in (out, errors))
                return _broken(error, ProcessResult(stdout=stdout, stderr=stderr, return_code=None, seconds=0.0))
            return self._outcome(end, out, errors)

    async def _end(self, step: Step) -> StepEnd:
        """Wait for the end of a step. If cancelled, end the step."""
        try:
            return await step.end()
        except asyncio.CancelledError:
            step.kill()
            await asyncio.wait([step.answer], timeout=_KILL_SECONDS)
            raise

    def _outcome(self, end: StepEnd, out: Drain, errors: Drain) -> ProcessResult:
        stdout, stderr = (drain.finish().decode(errors="replace") for drain in (out, errors))
        killed = self.world.cgroup is not None and self.world.cgroup.ran_out_of_memory()
        failed = end.code != 0 and not end.timed_out
        return ProcessResult(
            stdout=stdout,
            stderr=stderr,
            return_code=None if end.timed_out else end.code,
            seconds=end.seconds,
            timed_out=end.timed_out,
            oom=failed and (killed or out_of_memory(stderr)),
            output_truncated=out.truncated or errors.truncated,
        )


def _broken(error: BrokenWorldError, outcome: ProcessResult) -> ProcessResult:
    """Return the outcome of a program that has broken its world, which counts as killed."""
    separator = "\n" if outcome.stderr and not outcome.stderr.endswith("\n") else ""
    stderr = f"{outcome.stderr}{separator}{error}\n"
    return replace(outcome, stderr=stderr, return_code=_KILLED, timed_out=False, oom=error.oom)


def out_of_memory(stderr: str) -> bool:
    """Return whether a traceback ends in a `MemoryError`."""
    return bool(_OUT_OF_MEMORY.match(stderr.rstrip().rpartition("\n")[2]))


def _result(
    outcome: ProcessResult,
    compilation: ProcessResult | None,
    files: Mapping[str, bytes] | None = None,
    files_truncated: bool = False,
) -> ExecutionResult:
    return ExecutionResult(
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        return_code=outcome.return_code,
        seconds=outcome.seconds,
        timed_out=outcome.timed_out,
        oom=outcome.oom,
        output_truncated=outcome.output_truncated,
        compilation=compilation,
        files=files or {},
        files_truncated=files_truncated,
    )


async def fetch(
    world: World, bounds: Bounds, paths: Iterable[str], limit: int, *, alone: bool = True, last: bool = False
) -> tuple[dict[str, bytes], bool]:
    """Return the regular files among `paths`, by requested path, and whether one was left out because of `limit`.

    Raises `SandboxError`, and `BrokenWorldError` if code in the same world has stopped or forged the answer.
    """
    requested = list(dict.fromkeys(paths))
    drain = Drain(limit + _HEADER_BYTES * len(requested))
    try:
        with given(drain.writer):
            step = world.start(
                "read",
                {"stdout": drain.writer},
                timeout=_FETCH_SECONDS,
                limits={"open_files": 64},
                files=[(path, b"") for path in requested],
                alone=alone,
                last=last,
                limit=limit,
            )
        end = await step.end()
        if end.timed_out:
            raise SandboxError("The files could not be read in time.") if alone else BrokenWorldError("no file is read")
        files, left_out = _parse(drain.finish())
        return {path: files[index] for index, path in enumerate(requested) if index in files}, left_out
    finally:
        drain.close()


def _parse(data: bytes) -> tuple[dict[int, bytes], bool]:
    """Parse the output of `inside.files.read`, by index of the path.

    Raises `BrokenWorldError` if it is invalid, because in a session the code can also write to the pipe.
    """
    files: dict[int, bytes] = {}
    left_out = False
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        if not (line := _FILE.fullmatch(data, position, end)):
            raise BrokenWorldError("it wrote into the pipe from which files are read")
        index, size = int(line[1]), int(line[2])
        content = data[end + 1 : end + 1 + size] if size > 0 else b""
        position = end + 1 + len(content)
        if size < 0:
            left_out = True
        elif len(content) == size:
            files[index] = content
        else:
            break
    return files, left_out
