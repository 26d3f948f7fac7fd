"""The first process of a box: it starts commands for the owner, and reports how each ended.

It is single-threaded, runs nothing of the box itself, and cannot be traced from inside. When its socket closes, it
ends, and the kernel ends everything in the box with it.
"""

from __future__ import annotations

import _signal
import json
import marshal
import os
import select
import tarfile
import time
from _socket import AF_INET, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket

from agentloop.boxes.inside import commands, files, layer
from agentloop.sandboxes.inside import channel
from agentloop.sandboxes.inside.isolation import cleanup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

_KILL_SECONDS = 5.0


class UnknownUserError(Exception):
    """The box has no such user."""


class FirstProcess:
    """Serves the owner of a box."""

    def __init__(self, control: socket, own_layer: int) -> None:
        """`own_layer` is a descriptor of the directory that has all differences from the image."""
        self._control = control
        self._layer = own_layer
        with open("/proc/self/setgroups") as file:
            self._has_users = file.read().strip() == "allow"
        self._children: dict[int, int] = {}  # pid -> number of the request
        self._wakeup, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve until the owner is gone."""
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wakeup:
                    os.read(self._wakeup, 4096)
                    self._reap()
                else:
                    try:
                        message, fds = channel.receive(self._control)
                    except EOFError:
                        return
                    self._handle(message, fds)

    def _handle(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        number = message["id"]
        operation = message["op"]
        try:
            if operation == "run":
                request = marshal.loads(os.pread(fds[0], message["bytes"], 0))
                user = self._user(request["user"])
                request |= user | {"env": {**user["env"], **request["env"]}}
                self._start(number, lambda: commands.supervise(request, fds[1:]))
            elif operation in ("receive", "send"):
                self._start(number, lambda: _transfer(message, fds))
            elif operation == "copy":
                self._start(number, lambda: _copy(self._layer, fds))
            elif operation == "ready":
                self._answer({"id": number, "code": 0})
            elif operation == "kill":
                self._kill_command(message["target"])
            elif operation == "interrupt":
                self._interrupt(message["target"])
            elif operation == "listen":
                _listen(message["port"], fds[0])
                self._answer({"id": number, "code": 0})
            else:
                assert operation == "kill_all", operation
                self._kill_all()
                self._answer({"id": number, "code": 0})
        except (UnknownUserError, OSError) as error:
            self._answer({"id": number, "error": str(error)})
        finally:
            for fd in fds:
                os.close(fd)

    def _user(self, name: str) -> dict[str, Any]:
        """Return a user as `_user` does. Raises `UnknownUserError` also if the box has root only."""
        user = _user(name)
        if not self._has_users:
            if (user["uid"], user["gid"]) != (0, 0):
                raise UnknownUserError(
                    f"The box has only the user root, not {name!r}, because agentloop does not run as root: start it "
                    "as root for boxes with several users."
                )
            user["groups"] = []
        return user

    def _start(self, number: int, run: Callable[[], NoReturn]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                _signal.set_wakeup_fd(-1)
                _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
                self._control.close()
                run()
            finally:
                os._exit(commands.NOT_STARTED)
        self._children[pid] = number

    def _reap(self) -> bool:
        """Report the children that have ended; return whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if (number := self._children.pop(pid, None)) is not None:
                code = os.waitstatus_to_exitcode(status)
                self._answer({"id": number, "code": code if code >= 0 else 128 - code})

    def _supervisor(self, number: int) -> int | None:
        return next((pid for pid, own in self._children.items() if own == number), None)

    def _kill_command(self, number: int) -> None:
        """Kill a command and its descendants. If that does not finish, kill everything in the box."""
        supervisor = self._supervisor(number)
        if supervisor is None:
            return
        end = time.monotonic() + _KILL_SECONDS
        while time.monotonic() < end:
            below = cleanup.below(supervisor)
            for pid in below:
                _signal_to(pid, _signal.SIGKILL)
            if not below or not any(map(_is_alive, below)):
                _signal_to(supervisor, _signal.SIGKILL)
                return
            time.sleep(0.001)
        self._kill_all()

    def _kill_all(self) -> None:
        """Kill every other process, and wait until none is left. Orphans become children of this process."""
        cleanup.kill_namespace()
        end = time.monotonic() + _KILL_SECONDS
        while self._reap() and time.monotonic() < end:
            time.sleep(0.001)

    def _interrupt(self, number: int) -> None:
        """Interrupt the descendants of a command, or the command itself if it has none."""
        supervisor = self._supervisor(number)
        if supervisor is None:
            return
        command, *started = cleanup.below(supervisor) or [0]
        for pid in started or [command]:
            if pid:
                _signal_to(pid, _signal.SIGINT)

    def _answer(self, answer: dict[str, Any]) -> None:
        channel.say(self._control, json.dumps(answer).encode())


def _listen(port: int, channel_fd: int) -> None:
    """Send a socket that listens on 127.0.0.1 of the box to the owner. Raises `OSError`."""
    listener, connection = socket(AF_INET, SOCK_STREAM), socket(fileno=os.dup(channel_fd))
    try:
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        channel.send(connection, {}, [listener.fileno()])
    finally:
        listener.close()
        connection.close()


def _signal_to(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def _transfer(message: dict[str, Any], fds: Sequence[int]) -> NoReturn:
    """Copy files over the first descriptor; the text of an error goes over the second."""
    try:
        if message["op"] == "receive":
            with open(fds[0], "rb") as stream:
                files.receive(stream, message["path"])
        else:
            with open(fds[0], "wb") as stream:
                is_directory = files.send(stream, message["path"], message["max_bytes"])
            os._exit(0 if is_directory else files.SINGLE_FILE)
    except files.TooLargeError:
        os._exit(files.TOO_LARGE)
    except (OSError, tarfile.TarError) as error:
        os.write(fds[1], str(error).encode())
        os._exit(1)
    os._exit(0)


def _copy(own_layer: int, fds: Sequence[int]) -> NoReturn:
    """Write the box's own layer to the first descriptor; the text of an error goes over the second."""
    try:
        with open(fds[0], "wb") as stream:
            layer.write(stream, own_layer)
    except BrokenPipeError:
        os._exit(0)  # the reader reports why it stopped
    except OSError as error:
        os.write(fds[1], str(error).encode())
        os._exit(1)
    os._exit(0)


def _user(name: str) -> dict[str, Any]:
    """Return ids, groups and home of `user` or `user:group`, by name or number, from the files of the box."""
    user, _, group = name.partition(":")
    accounts = [line.split(":") for line in _lines("/etc/passwd")]
    own = next((each for each in accounts if len(each) >= 7 and user in (each[0], each[2])), None)
    if own is None and not user.isdecimal():
        raise UnknownUserError(f"The box has no user {user!r}.")
    uid = int(own[2]) if own else int(user)
    gid = int(own[3]) if own else 0
    groups = [line.split(":") for line in _lines("/etc/group")]
    if group:
        found = next((each[2] for each in groups if len(each) >= 4 and group in (each[0], each[2])), group)
        if not found.isdecimal():
            raise UnknownUserError(f"The box has no group {group!r}.")
        gid = int(found)
    names = [int(each[2]) for each in groups if own and len(each) >= 4 and own[0] in each[3].split(",")]
    home = own[5] if own else "/"
    return {"uid": uid, "gid": gid, "groups": [gid, *names], "env": {"HOME": home, "USER": own[0] if own else user}}


def _lines(path: str) -> list[str]:
    try:
        with open(path, errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
