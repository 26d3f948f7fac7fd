"""`Box`, a running machine, `Process`, a program in it, and `BoxProvider`, which starts boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from agentloop.boxes.interface.spec import BoxSpec, Image
from agentloop.errors import SandboxError

OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Called with each piece of output when it arrives."""


class BoxError(SandboxError):
    """The box itself failed, not a program in it."""


class BoxLostError(BoxError):
    """The box has ended or was restarted: the episode's work in it is lost."""


class ProgramEndedError(BoxError):
    """A program has ended or closed its input, so nothing can be written to it. Its box still runs."""


@dataclass(slots=True, frozen=True, kw_only=True)
class BoxResult:
    """The result of one command. Bytes that are not UTF-8 are replaced by U+FFFD."""

    stdout: str
    stderr: str
    return_code: int | None
    """Exit status; 128 + N if signal N ended the command; None after a timeout."""
    seconds: float
    timed_out: bool = False
    output_truncated: bool = False


class Process(Protocol):
    """A program in a box that can be written to while it runs, such as a shell."""

    async def write(self, data: bytes) -> None:
        """Write to its stdin, or to its terminal. Raises `ProgramEndedError` if it has ended."""
        ...

    async def close_stdin(self) -> None: ...

    async def read(self) -> bytes:
        """Return the next piece of output, stdout and stderr interleaved; empty at the end."""
        ...

    async def interrupt(self) -> None:
        """Send SIGINT to its foreground process group."""
        ...

    async def kill(self) -> None:
        """Kill it and every process that it has started."""
        ...

    async def wait(self) -> int:
        """Return its exit status, 128 + N for signal N."""
        ...


class Box(Protocol):
    """A running box. Every method raises `BoxLostError` if the box has ended or was restarted."""

    id: str
    """Name of the box, which its provider and the labels of its engine use."""
    generation: str
    """Identifier that changes at every start: a restarted box is another box."""
    spec: BoxSpec

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
        """Run a command to its end; a string is run by `bash -c` (`sh -c` if the box has no bash).

        After `timeout` seconds the command and its descendants are killed. The first `output_bytes` of stdout and of
        stderr are kept; the rest is dropped. Raises `UserError` for variables that cannot be set.
        """
        ...

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        tty: bool = False,
    ) -> Process:
        """Start a program and return at once."""
        ...

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file, or the content of a directory, to the path `target` of the box, owned by its root.

        Missing parents are created. Links inside `source` are copied as links. Existing links of the box at `target` or
        on the way are never followed out of it.
        """
        ...

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """Copy a file, or the content of a directory, to `target` on this machine.

        Links, devices and sockets are left out. Raises `BoxError` if `source` does not exist or is larger.
        """
        ...

    async def forward(self, port: int, host: str, host_port: int) -> None:
        """Forward connections to 127.0.0.1:port of the box to an address of this machine's network, until the box ends.

        Raises `BoxError` if the port is taken.
        """
        ...

    async def kill_processes(self) -> None:
        """Kill every process of the box but its first, background processes included."""
        ...

    async def fork(self) -> Box:
        """Return another box with a copy of the current files; processes are not copied."""
        ...

    async def stop(self) -> None:
        """End the box and remove everything that belongs to it. Later calls have no effect."""
        ...


class BoxProvider(Protocol):
    """Starts boxes on this machine or elsewhere. Made by `agentloop.boxes.create`."""

    async def open(self) -> None:
        """Check that boxes can start, and remove those of dead owners. Raises `UserError` if they cannot start."""
        ...

    async def prepare(self, image: Image) -> None:
        """Pull, build or unpack an image, once for all boxes and processes; the result is kept by its content.

        Raises `UserError` if the image is unavailable.
        """
        ...

    async def start(self, spec: BoxSpec) -> Box:
        """Start a box. Raises `UserError` if the spec cannot be met, `BoxError` if the start fails."""
        ...

    async def close(self) -> None:
        """Stop all remaining boxes, and release the leases."""
        ...
