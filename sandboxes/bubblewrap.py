"""The isolation level `bubblewrap`: a fresh set of namespaces for every execution, made without privileges by bwrap.

Inside there are no files of the host but /usr and the interpreter, no network but a loopback of its own, no other
processes, no environment; a seccomp filter and resource limits on top (docs: `seccomp`, `rootfs`, `harness`). Memory
is limited by process, not in sum: this level uses no cgroup.
https://github.com/containers/bubblewrap
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import ClassVar

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes import launcher
from agentloop.sandboxes.base import Execution, ExecutionResult
from agentloop.sandboxes.pipes import Drain, memory_file
from agentloop.sandboxes.rootfs import WORKING_DIRECTORY, RootFS
from agentloop.sandboxes.seccomp import build_filter
from agentloop.sandboxes.spawner import Spawner

_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"),
    *("--hostname", "sandbox", "--cap-drop", "ALL", "--new-session", "--die-with-parent"),
)
_SECCOMP_FD = 5
_MAIN = {"python": "main.py", "bash": "main.sh"}
_HARNESS = Path(__file__).with_name("harness.py").read_text()
_BASH = (
    "ulimit -SH -u $1 -d $(($2 / 1024)) -v $(($2 / 256)) -f $(($3 / 1024)) -t $4 -n 1024 -c 0; "
    "printf 1 >&3; exec 3>&-; exec bash main.sh"
)
_REQUIREMENTS = (
    "It needs bubblewrap 0.8 or newer and user namespaces for unprivileged processes. Where they are forbidden: sysctl "
    "user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 (old Debian), "
    "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 24.04); in a container, `docker run --cap-add SYS_ADMIN "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`."
)
_SETUP_SECONDS = 60.0
_KILL_SECONDS = 10.0
_OUT_OF_MEMORY = re.compile(r"^\S*MemoryError\b")


class Bubblewrap:
    """Executions in bubblewrap.

    `packages`: installed distributions that the code may import, besides the standard library (their requirements
    come along). `binds`: further host paths to show read-only, where they are. `max_concurrent`: executions at once,
    twice the cores by default. `max_processes`: processes and threads of one execution. `disk_mb`: MiB of each of its
    two tmpfs, /tmp (with the working directory) and /dev/shm.
    """

    level: ClassVar[str] = "bubblewrap"

    def __init__(
        self,
        *,
        packages: Sequence[str] = (),
        binds: Sequence[str] = (),
        max_concurrent: int | None = None,
        max_processes: int = 64,
        disk_mb: int = 256,
    ) -> None:
        self._cores = os.cpu_count() or 1
        self._rootfs = RootFS.plan(packages, binds, disk_mb)
        self._max_processes = max_processes
        self._disk_bytes = disk_mb << 20
        self._slots = asyncio.Semaphore(max_concurrent or 2 * self._cores)
        self._filter = build_filter()
        self._fixed = self._fixed_arguments()
        self._starting = asyncio.Lock()
        self._spawner: Spawner | None = None

    async def start(self) -> None:
        if self._spawner is not None and self._spawner.usable:
            return
        async with self._starting:
            if self._spawner is not None and self._spawner.usable:
                return
            bwrap = shutil.which("bwrap")
            if bwrap is None:
                raise UserError(
                    "The sandbox level 'bubblewrap' needs the program bwrap, which is not installed: "
                    "`apt-get install bubblewrap` (Debian, Ubuntu) or `dnf install bubblewrap` (Fedora)."
                )
            try:
                self._spawner = await self._start(bwrap)
            except SandboxError as error:
                raise UserError(
                    f"The sandbox level 'bubblewrap' does not work on this machine: {error} {_REQUIREMENTS}"
                ) from error

    async def run(self, execution: Execution) -> ExecutionResult:
        async with self._slots:
            await self.start()
            assert self._spawner is not None
            return await self._run(self._spawner, execution)

    async def close(self) -> None:
        if self._spawner is not None:
            await self._spawner.close()
            self._spawner = None

    async def _start(self, bwrap: str) -> Spawner:
        """A launcher that has run something for real: what forbids it (sysctl, AppArmor, seccomp, an old bwrap) has
        too many faces to look for each. Raises `SandboxError`."""
        spawner = await Spawner.start(bwrap, [path for path, _ in self._rootfs.binds])
        try:
            result = await self._run(spawner, Execution(code="print(6 * 7)", timeout=30.0))
            if result.stdout != "42\n":
                raise SandboxError(f"Python fails in it: {result.stderr.strip()}.")
        except BaseException:
            await spawner.close()
            raise
        return spawner

    async def _run(self, spawner: Spawner, execution: Execution) -> ExecutionResult:
        with ExitStack() as ours, ExitStack() as theirs:

            def give(fd: int) -> int:
                theirs.callback(os.close, fd)
                return fd

            def give_file(content: bytes) -> int:
                return give(memory_file(content))

            drains = [Drain(execution.output_bytes), Drain(execution.output_bytes), Drain(limit=1)]
            for drain in drains:
                ours.callback(drain.close)
                give(drain.writer)
            fds = [give_file(_encode(execution.stdin or b"")), *(drain.writer for drain in drains)]
            fds += map(give_file, self._arguments(execution))
            number, status = spawner.spawn(give_file(_words(self._command(execution))), fds)
            theirs.close()
            try:
                return await _watch(spawner, number, status, drains, execution.timeout)
            finally:
                if not status.done():  # cancelled: the slot is free when the processes are gone
                    spawner.kill(number)
                    await asyncio.wait([status], timeout=_KILL_SECONDS)

    def _fixed_arguments(self) -> tuple[bytes, list[bytes]]:
        """Arguments of bwrap that all executions share, and the files that they write."""
        contents: list[bytes] = []

        def file(path: str, content: bytes) -> list[str]:
            contents.append(content)
            return ["--file", str(_SECCOMP_FD + len(contents)), path]

        source = launcher.staged if os.geteuid() == 0 else lambda index: self._rootfs.binds[index][0]
        arguments = self._rootfs.arguments(source, file)
        return _words([*_ISOLATION, "--seccomp", str(_SECCOMP_FD), *arguments]), contents

    def _arguments(self, execution: Execution) -> list[bytes]:
        """The arguments of bwrap, and the contents of the descriptors that they speak of, from `_SECCOMP_FD` on."""
        fixed, contents = self._fixed
        files = {str(PurePosixPath(path)): content for path, content in execution.files.items()}
        files[_MAIN[execution.language]] = _encode(execution.code)
        arguments: list[str] = []
        for fd, path in enumerate(files, start=_SECCOMP_FD + 1 + len(contents)):
            arguments += ["--file", str(fd), f"{WORKING_DIRECTORY}/{path}"]
        return [fixed + b"\0" + _words(arguments), self._filter, *contents, *files.values()]

    def _command(self, execution: Execution) -> list[str]:
        # A process may use all cores, so that its CPU time can be that many times the wall clock.
        cpu_seconds = self._cores * (math.ceil(execution.timeout) + 1)
        limits = map(str, (self._max_processes, execution.memory_mb << 20, self._disk_bytes, cpu_seconds))
        if execution.language == "bash":
            return ["/bin/bash", "--norc", "-c", _BASH, "bash", *limits]
        python = [self._rootfs.interpreter, "-S", "-s", "-B", "-u", "-c", _HARNESS]
        return [*python, *limits, str(int(execution.echo))]


def _encode(text: str | bytes) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text


def _words(words: Iterable[str]) -> bytes:
    return b"\0".join(map(os.fsencode, words))


@asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise SandboxError(f"The execution {what} within {seconds:g} s.") from error


async def _watch(
    spawner: Spawner, number: int, status: asyncio.Future[int], drains: Sequence[Drain], seconds: float
) -> ExecutionResult:
    """Follow an execution to its end, which comes by itself or `seconds` after the code has started."""
    stdout, stderr, started = drains
    async with _within(_SETUP_SECONDS, "was not set up"):
        if not await started.first:
            await status
            await stderr.ended
            reason = stderr.text().strip().rpartition("\n")[2] or "bubblewrap ended before the code started"
            raise SandboxError(f"{reason}.")
    start = time.monotonic()
    await asyncio.wait([status], timeout=seconds)
    if timed_out := not status.done():
        spawner.kill(number)
    async with _within(_KILL_SECONDS, "could not be ended"):
        return_code = await status
        taken = time.monotonic() - start
        # All writers are gone, so that what is left in the pipes is read at once.
        await asyncio.wait([stdout.ended, stderr.ended])
    errors = stderr.text()
    return ExecutionResult(
        stdout=stdout.text(),
        stderr=errors,
        return_code=None if timed_out else return_code,
        seconds=taken,
        timed_out=timed_out,
        oom=not timed_out and return_code != 0 and bool(_OUT_OF_MEMORY.match(errors.rstrip().rpartition("\n")[2])),
        output_truncated=stdout.truncated or stderr.truncated,
    )
