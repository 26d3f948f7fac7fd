"""Run one command of a box, below a process that tracks all its descendants."""

from __future__ import annotations

import _signal
import fcntl
import os
import select
import struct
import termios

from agentloop.sandboxes.inside.isolation import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

NOT_STARTED = 126
NOT_FOUND = 127
_CHUNK = 1 << 16
_SIZE = (40, 120)
"""Rows and columns of a terminal."""


def supervise(request: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """Run a command in a child, and end as it does: with its exit status, or 128 + N for signal N.

    Processes that outlive the command become children of this one until they end, so they can be found and killed with
    the command. `streams` are its stdin, stdout and stderr; a command with a terminal gets a new one, whose content
    goes over the first two.
    """
    libc.become_subreaper()
    terminal = os.openpty() if request["tty"] else None
    child = os.fork()
    if child == 0:
        _execute(request, streams, terminal)
    if terminal is None:
        libc.close_from(0)
        os._exit(_wait(child))
    os.close(terminal[1])
    libc.close_all_but(terminal[0], *streams)
    _pump(terminal[0], *streams[:2])
    os._exit(_wait(child))


def _wait(child: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _execute(request: dict[str, Any], streams: Sequence[int], terminal: tuple[int, int] | None) -> NoReturn:
    """Become the command. Its errors go to its stderr, with the exit status that shells use for them."""
    try:
        libc.set_dumpable(True)  # else root would own its files in /proc
        os.setsid()
        if terminal is not None:
            fcntl.ioctl(terminal[1], termios.TIOCSWINSZ, struct.pack("=HHHH", *_SIZE, 0, 0))
            fcntl.ioctl(terminal[1], termios.TIOCSCTTY, 0)
            os.fchown(terminal[1], request["uid"], -1)
            streams = (terminal[1],) * 3
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        libc.close_from(3)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGPIPE, _signal.SIGCHLD):
            _signal.signal(number, _signal.SIG_DFL)
        if request["groups"]:  # only root on the machine may set them
            os.setgroups(request["groups"])
        os.setresgid(request["gid"], request["gid"], request["gid"])
        os.setresuid(request["uid"], request["uid"], request["uid"])
        os.umask(0o022)
        _become(request)
    except OSError as error:
        os.write(2, f"{error.strerror}: {error.filename or request['argv'][0]}\n".encode())
        os._exit(NOT_STARTED)


def _become(request: dict[str, Any]) -> NoReturn:
    os.chdir(request["cwd"])
    environment: Mapping[str, str] = request["env"]
    for argv in request["shells"] or [request["argv"]]:
        try:
            os.execvpe(argv[0], argv, environment)
        except FileNotFoundError:
            continue
    os.write(2, f"{argv[0]}: not found\n".encode())
    os._exit(NOT_FOUND)


def _pump(terminal: int, stdin: int, stdout: int) -> None:
    """Copy between a terminal and two pipes until nobody has the terminal open."""
    poll = select.poll()
    poll.register(terminal, select.POLLIN)
    poll.register(stdin, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == stdin:
                data = os.read(stdin, _CHUNK)
                if not data:
                    poll.unregister(stdin)
                    data = b"\x04"  # end of input
                while data:
                    data = data[os.write(terminal, data) :]
                continue
            try:
                data = os.read(terminal, _CHUNK)
            except OSError:  # EIO: the last program has closed it
                return
            try:
                while data:
                    data = data[os.write(stdout, data) :]
            except BrokenPipeError:
                return
