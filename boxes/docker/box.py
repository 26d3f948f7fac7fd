"""`DockerBox`: a box that is a container."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

from agentloop.boxes.copies import pack, unpack
from agentloop.boxes.docker.engine import BoxEngine
from agentloop.boxes.docker.process import DockerProcess
from agentloop.boxes.docker.streams import Streams
from agentloop.boxes.interface.archives import SentArchive
from agentloop.boxes.interface.box import BoxError, BoxLostError, BoxResult, OnOutput
from agentloop.boxes.interface.spec import BoxSpec, check_variables
from agentloop.boxes.network import proxy
from agentloop.boxes.network.namespaces import listen_in
from agentloop.boxes.network.relay import Handler, Relays, to_address

T = TypeVar("T")

MARK = "AGENTLOOP_COMMAND"
"""Variable that identifies the processes of a command."""
_KILL = (
    # A killed process takes its time to end on a busy machine.
    "end=$(($(date +%s) + 5)); while :; do left=; for folder in /proc/[0-9]*; do "
    'if grep -q "$1" "$folder/environ" 2> /dev/null; then left=1; kill -9 "${folder#/proc/}" 2> /dev/null; fi; done; '
    '[ -n "$left" ] || exit 0; [ "$(date +%s)" -lt "$end" ] || exit 1; done'
)
_FIND = 'grep -qs "$1" /proc/[0-9]*/environ'
_NOT_FOUND_THERE = 1
"""Exit status of the script above if no process of the command is left; others can mean that grep is missing."""
_INTERRUPT = (
    "own=; others=; for folder in /proc/[0-9]*; do "
    'if grep -q "$1" "$folder/environ" 2> /dev/null; then '
    # The parent of a command that the engine starts is outside the box.
    'if grep -q "^PPid:[[:space:]]*0$" "$folder/status"; then own="${folder#/proc/}"; '
    'else others="$others ${folder#/proc/}"; fi; fi; done; kill -INT ${others:-$own}'
)
_NOT_STARTED = re.compile(
    rb"^(?:OCI runtime exec failed|Error): .*: "
    rb"(?:exec: \"(?P<program>[^\"]*)\"|chdir to cwd \(\"(?P<cwd>[^\"]*)\"\))"
)
_NO_USER = re.compile(rb"^unable to find user (?P<user>[^:]+):")
_LOSS_CHECKS, _LOSS_PAUSE = 5, 0.1
_ENDING_CHECKS = 30
_SCRIPT_SECONDS = 30.0
_NOT_FOUND, _NOT_RUN, _KILLED = 127, 126, 137


class DockerBox:
    """A running container, made by its provider. It belongs to the event loop that started it."""

    def __init__(
        self,
        engine: BoxEngine,
        name: str,
        container: str,
        lease: socket.socket,
        spec: BoxSpec,
        copy: Callable[[DockerBox], Awaitable[DockerBox]],
        ended: Callable[[DockerBox], None],
    ) -> None:
        """`copy` starts a box with the files of this one; `ended` is called when the container is gone."""
        self.id = name
        self.generation = container
        self.spec = spec
        self.images: list[str] = []
        """Images that were made for this box alone."""
        self._engine = engine
        self._lease = lease
        self._copy = copy
        self._on_end = ended
        self._is_alive = True
        self._relays = Relays()
        self._shell: str | None = None
        self._loop = asyncio.get_running_loop()
        lease.setblocking(False)
        self._loop.add_reader(lease, self._lease_readable)

    def _lease_readable(self) -> None:
        """Detect the end of the container: the engine closes the connection."""
        try:
            if self._lease.recv(1 << 12):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._end()

    def _end(self) -> None:
        if self._is_alive:
            self._is_alive = False
            self._loop.remove_reader(self._lease)
            with contextlib.suppress(OSError):
                self._lease.shutdown(socket.SHUT_RDWR)  # closing is not enough: the SDK has the same connection open
            self._lease.close()
            self._relays.close()
            self._on_end(self)

    def _reap(self) -> None:
        """Let the first process reap orphans that have ended."""
        with contextlib.suppress(OSError):
            self._lease.send(b"\n")

    def _check_alive(self) -> None:
        if not self._is_alive:
            raise BoxLostError(f"The box {self.id} has ended, and its files are lost.")

    async def _call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call the engine about this box. Raises `BoxLostError` for any error of the engine after the box has ended."""
        self._check_alive()
        try:
            return await asyncio.to_thread(function, self.id, *arguments, **named)
        except BoxError:
            for _ in range(_LOSS_CHECKS):  # the engine may refuse a moment before it knows that the box has ended
                self._check_alive()
                await asyncio.to_thread(self._engine.check_runs, self.id)
                await asyncio.sleep(_LOSS_PAUSE)
            raise

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,  # noqa: ASYNC109 - the box enforces the timeout
        output_bytes: int = 1 << 20,
        on_output: OnOutput | None = None,
    ) -> BoxResult:
        """Run a command to its end (`Box.exec`).

        Processes that remove the variable AGENTLOOP_COMMAND from their environment outlive a timeout.
        """
        start = time.monotonic()
        mark, number, streams = await self._start(command, cwd, env, user, stdin=bool(stdin), tty=False)
        kept = {"stdout": _Kept(output_bytes), "stderr": _Kept(output_bytes)}

        async def follow() -> None:
            writing = asyncio.ensure_future(_write(streams, stdin))
            try:
                async for name, piece in streams.until(
                    lambda: self._engine.status(self.id, number), lambda: self._is_running(mark)
                ):
                    kept[name].add(piece)
                    if on_output is not None:
                        on_output(name, piece)
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

        timed_out = False
        try:
            try:
                async with asyncio.timeout(timeout):
                    await follow()
            except TimeoutError:
                timed_out = True
                await self.signal(mark, _KILL)
            except asyncio.CancelledError:
                await asyncio.shield(self.signal(mark, _KILL))
                raise
        finally:
            streams.close()
        code = None if timed_out else await self._status(number)
        if code == _KILLED:  # was the box killed too?
            await self._check_not_ending(mark)
        self._check_alive()
        self._reap()
        out, err = kept["stdout"], kept["stderr"]
        if code in (_NOT_FOUND, _NOT_RUN):
            code = _explain(code, out, err)
        return BoxResult(
            stdout=out.text(),
            stderr=err.text(),
            return_code=code,
            seconds=time.monotonic() - start,
            timed_out=timed_out,
            output_truncated=out.truncated or err.truncated,
        )

    async def _start(
        self,
        command: str | Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        *,
        stdin: bool,
        tty: bool,
    ) -> tuple[str, str, Streams]:
        """Start a command; return its mark, its number in the engine and its streams."""
        check_variables(env or {})
        if isinstance(command, str):
            command = [await self._find_shell(), "-c", command]
        mark = uuid.uuid4().hex
        number, connection, early = await self._call(
            self._engine.execute,
            command,
            cwd=cwd,
            env={**({"TERM": "xterm"} if tty else {}), **(env or {}), MARK: mark},
            user=user or self.spec.user,
            stdin=stdin,
            tty=tty,
        )
        return mark, number, Streams(connection, early, tty=tty)

    async def _find_shell(self) -> str:
        if self._shell is None:
            found = await self.exec(["/bin/sh", "-c", "command -v bash"], user="0:0", cwd="/")
            self._shell = "bash" if found.return_code == 0 else "sh"
        return self._shell

    async def _status(self, number: str) -> int | None:
        """Return the exit status of a command whose output has ended."""
        while (code := await self._call(self._engine.status, number)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the engine closes the streams slightly earlier
        return code

    async def signal(self, mark: str, script: str) -> None:
        """Run a script that signals the processes of a command. Raises `BoxError` if that does not work."""
        with contextlib.suppress(BoxLostError):
            if await self._run_script(script, mark) != 0 and script == _KILL:
                await self.kill_processes()
            self._reap()

    async def _is_running(self, mark: str) -> bool:
        """Return whether processes of a command are alive; True if the box cannot be searched."""
        return await self._run_script(_FIND, mark) != _NOT_FOUND_THERE

    async def _check_not_ending(self, mark: str) -> None:
        """Raise `BoxLostError` if the first process was killed, after which the kernel starts no other in the box.

        The engine may say for a moment that such a box runs.
        """
        try:
            if await self._run_script("exit 0", mark) == 0:
                return
        except BoxLostError:
            raise
        except BoxError:  # it could not be started
            pass
        for _ in range(_ENDING_CHECKS):  # or the agent has replaced the shell
            await self._call(self._engine.check_runs)
            await asyncio.sleep(_LOSS_PAUSE)

    async def _run_script(self, script: str, mark: str) -> int | None:
        """Return the exit status of a script about a command; None if it takes too long. Raises `BoxError`."""
        number, connection, early = await self._call(
            self._engine.execute, ["/bin/sh", "-c", script, "sh", mark], user="0:0", cwd="/"
        )
        streams = Streams(connection, early, tty=False)
        try:
            async with asyncio.timeout(_SCRIPT_SECONDS):  # the agent may have replaced the shell of the box
                while await streams.read() is not None:
                    pass
                return await self._status(number)
        except TimeoutError:
            return None
        finally:
            streams.close()

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        tty: bool = False,
    ) -> DockerProcess:
        """Start a program and return at once (`Box.spawn`)."""
        mark, number, streams = await self._start(command, cwd, env, user, stdin=True, tty=tty)
        if tty:
            await self._call(self._engine.resize, number, 40, 120)
        return DockerProcess(
            streams,
            status=lambda: self._engine.status(self.id, number),
            interrupt=lambda: self.signal(mark, _INTERRUPT),
            kill=lambda: self.signal(mark, _KILL),
            tty=tty,
        )

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file, or the content of a directory, to the path `target` of the box (`Box.upload`)."""
        with tempfile.TemporaryFile() as stream:
            folder = await asyncio.to_thread(pack, source, PurePosixPath(target), stream)
            await self.receive_archive(stream, folder)

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """Copy a file, or the content of a directory, to `target` on this machine (`Box.download`)."""
        with tempfile.TemporaryFile() as stream:
            sent = await self.send_archive(source, stream, max_bytes)
            await asyncio.to_thread(unpack, stream, source, target, max_bytes, is_file=sent.is_file, below=sent.below)

    async def receive_archive(self, stream: IO[bytes], folder: str) -> None:
        """Unpack a tar archive into a directory of the box (`ArchiveBox`)."""
        made = await self.exec(["/bin/sh", "-c", 'mkdir -p -- "$1"', "sh", folder], user="0:0", cwd="/")
        if made.return_code != 0:
            raise BoxError(f"{folder} cannot be written to the box: {made.stderr.strip()}")
        await self._call(self._engine.put, stream, folder)

    async def send_archive(self, source: str, stream: IO[bytes], max_bytes: int) -> SentArchive:
        """Write a file, or the content of a directory, as a tar archive (`ArchiveBox`)."""
        try:
            is_directory, name = await self._call(self._engine.get, source, stream, max_bytes)
        except BoxLostError:
            raise
        except BoxError as error:
            raise BoxError(f"{source} cannot be read from the box: {error}") from error
        return SentArchive(is_file=not is_directory, below=name)

    async def forward(self, port: int, host: str, host_port: int) -> None:
        """Forward connections to 127.0.0.1:port of the box to an address of this machine's network (`Box.forward`)."""
        await self._relay(port, to_address(host, host_port))

    async def open_network(self) -> None:
        """Start the proxy of a box that may reach some hosts. Raises `BoxError`."""
        if self.spec.network.mode == "allowlist":
            await self._relay(proxy.PORT, proxy.Proxy(self.spec.network).serve)

    async def _relay(self, port: int, handler: Handler) -> None:
        pid = await self._call(self._engine.pid)
        await self._relays.serve(await asyncio.to_thread(listen_in, pid, port), handler)

    async def kill_processes(self) -> None:
        """Kill every process of the box but its first, and check from outside that none remains."""
        for _ in range(10):
            with contextlib.suppress(BoxLostError):  # the killed shell may be reported as a lost command
                await self._run_script("kill -9 -1", "")
            self._reap()
            left = await self._call(self._engine.processes)
            if not left:
                return
            await asyncio.sleep(0.05)
        raise BoxError(f"Processes of the box {self.id} cannot be killed: {', '.join(left[:5])}.")

    async def fork(self) -> DockerBox:
        """Return another box with a copy of the current files; processes are not copied."""
        return await self._copy(self)

    async def commit(self) -> str:
        """Make an image of the files, and return its id. Raises `BoxError`."""
        return await self._call(self._engine.commit)

    async def stop(self) -> None:
        """End the box and remove everything that belongs to it."""
        self._end()
        await asyncio.to_thread(self._engine.remove, self.id)
        for image in self.images:
            await asyncio.to_thread(self._engine.remove_image, image)


class _Kept:
    """The first bytes of an output."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.truncated = False

    def add(self, piece: bytes) -> None:
        room = self._limit - len(self._data)
        self.truncated |= len(piece) > room
        self._data += piece[:room]

    def text(self) -> str:
        return self._data.decode(errors="replace")

    def replace(self, text: str) -> None:
        self._data[:] = text.encode()

    def match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        return pattern.match(bytes(self._data))


def _explain(code: int, out: _Kept, err: _Kept) -> int:
    """Replace the engine's report of a failed start with a shell's error message; return the exit status.

    Raises `BoxError` for an unknown user.
    """
    if found := out.match(_NO_USER):
        raise BoxError(f"The box has no user {found['user'].decode()!r}.")
    found = out.match(_NOT_STARTED) or err.match(_NOT_STARTED)
    if found is None:
        return code
    out.replace("")
    if found["cwd"] is not None:
        err.replace(f"No such file or directory: {found['cwd'].decode()}\n")
        return _NOT_RUN
    err.replace(f"{found['program'].decode()}: not found\n")
    return _NOT_FOUND


async def _write(streams: Streams, data: bytes) -> None:
    if data:
        with contextlib.suppress(OSError):  # a command may end before it reads everything
            await streams.write(data)
        streams.close_input()
