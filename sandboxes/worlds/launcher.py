"""The process that starts sandboxes: small, single-threaded and unprivileged.

It is started once per `Bubblewrap` sandbox, so that a rollout worker with many gigabytes need not fork for each
execution. It runs as a script under `python -I -S`, so it uses only the standard library. When its parent ends, for any
reason, the socket closes, and the launcher and every sandbox end.

If started as root, it first gives up root permanently, because root in a sandbox that root made would own /proc/sys of
the host. Before that it binds paths that only root can reach to /tmp/<index> of a private mount namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Sequence

REQUEST = struct.Struct("<cI")
"""START or KILL, and the number of the execution. START comes with descriptors. The first contains the command to run
in the sandbox, its words separated by NUL. The others become 0, 1, 2, ... of bwrap."""
REPLY = struct.Struct("<Ii")
"""Number of the execution, and its exit status, or -errno if it could not be started."""
START, KILL = b"s", b"k"
READY = 0
"""Number in the reply that announces that requests are accepted."""

CONTROL_FD, ARGUMENTS_FD = 3, 4
_MAX_FDS = 253
_NOBODY = 65534
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_SLAVE = 0x00020000, 0x1000, 0x4000, 0x80000
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38


def staged(index: int) -> str:
    """Return the place of path `index` after `drop_privileges`."""
    return f"/tmp/{index}"


def _checked(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def drop_privileges(paths: Sequence[str]) -> None:
    """Become nobody permanently, with `paths` readable at `staged`. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
        texts = [text.encode() if text else None for text in (source, target, kind, data)]
        _checked(libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]), f"mount {source} at {target}")

    _checked(libc.unshare(_CLONE_NEWNS), "a private mount namespace")
    mount("none", "/", None, _MS_REC | _MS_SLAVE)
    handles = [os.open(path, os.O_PATH) for path in paths]  # before /tmp, which may contain some of them, is covered
    mount("tmpfs", "/tmp", "tmpfs", 0, "mode=0755,size=64k")
    for index, handle in enumerate(handles):
        target = staged(index)
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT))
        mount(f"/proc/self/fd/{handle}", target, None, _MS_BIND | _MS_REC)
        os.close(handle)
    capability = 0
    while libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


class Launcher:
    """Starts the requested sandboxes and reports the end of each."""

    def __init__(self, control: socket.socket, bwrap: str) -> None:
        self._control = control
        self._argv = [bwrap, "--args", str(ARGUMENTS_FD), "--"]
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self.running: dict[int, int] = {}

    def serve(self) -> None:
        """Serve requests until the other side closes the socket."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._control:
                    self._ended(key.fd, *key.data)
                elif not self.handle_request():
                    return

    def handle_request(self) -> bool:
        """Handle one request; return False if the other side has closed the socket."""
        message, fds, _, _ = socket.recv_fds(self._control, REQUEST.size, _MAX_FDS)
        if not message:
            return False
        for fd in fds:
            os.set_inheritable(fd, False)
        kind, number = REQUEST.unpack(message)
        if kind == KILL:
            self._kill(number)
            return True
        try:
            self._start(number, fds)
        except OSError as error:
            self._control.sendall(REPLY.pack(number, -(error.errno or 1)))
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _start(self, number: int, fds: Sequence[int]) -> None:
        with open(fds[0], "rb", closefd=False) as file:
            argv = [*self._argv, *map(os.fsdecode, file.read().split(b"\0"))]
        actions = [(os.POSIX_SPAWN_DUP2, fd, position) for position, fd in enumerate(fds[1:])]
        pid = os.posix_spawn(argv[0], argv, {}, file_actions=actions)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # too many descriptors: do not run a sandbox that cannot be watched
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self.running[number] = pid
        self._selector.register(pidfd, selectors.EVENT_READ, (number, pid))

    def _kill(self, number: int) -> None:
        """Kill the first process of its namespace. The kernel then ends all others, and bwrap ends last."""
        if (pid := self.running.get(number)) is None:
            return
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                children = [int(child) for child in file.read().split()]
        except OSError:
            children = []
        for victim in children or [pid]:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(victim, signal.SIGKILL)

    def _ended(self, pidfd: int, number: int, pid: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        del self.running[number]
        self._control.sendall(REPLY.pack(number, abs(os.waitstatus_to_exitcode(status))))


def main() -> None:
    """Serve the socket given on the command line."""
    fd, bwrap, paths = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)  # bwrap passes all its descriptors on to the code
    # Received descriptors must lie above the numbers that they get in bwrap.
    reserve = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)]
    while reserve[-1] < _MAX_FDS + 3:
        reserve.append(os.dup(reserve[0]))
    if os.geteuid() == 0:
        drop_privileges(paths)
    os.chdir("/")
    control.sendall(REPLY.pack(READY, 0))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent has ended, so all sandboxes end
        Launcher(control, bwrap).serve()


if __name__ == "__main__":
    main()
