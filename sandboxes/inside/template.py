"""The template: an interpreter with modules already imported, from which every slot is forked.

It serves the socket of one owner. When the owner ends, for any reason, the template ends all slots, removes their
cgroups and ends. If started as root, it stays root outside the slots, but sees only the file system of the slots.
"""

from __future__ import annotations

import _signal
import gc
import os
import select
import sys
import time
from _socket import socket

from agentloop.sandboxes.inside import channel, program, slot
from agentloop.sandboxes.inside.isolation import libc, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FIRST_USER = 0x70000000
_USERS = 0x0FFF0000
"""Range of host users for slots: above the ranges of container managers, below 2^31."""
_MAX_SLOTS = 4096


def main(control_fd: int, plan: dict[str, Any], kind: type[Template] | None = None) -> None:
    """Serve the owner's requests, for slots unless `kind` is another template, until it ends."""
    os.set_inheritable(control_fd, False)
    control = socket(fileno=control_fd)
    owner = os.pidfd_open(plan["owner"])
    if os.getppid() != plan["owner"]:
        return
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_IGN)  # the owner gets the signal, too, and the template ends with it
    template = (kind or Template)(control, owner, plan)
    try:
        template.build()
    except Exception as error:
        channel.send(control, {"error": f"{type(error).__name__}: {error}", "module": template.importing})
        return
    channel.send(control, {"ready": True})
    template.serve()


class Template:
    """Serves requests for slots."""

    def __init__(self, control: socket, owner: int, plan: dict[str, Any]) -> None:
        self._control = control
        self._owner = owner
        self._plan = plan
        self._root = os.geteuid() == 0
        self._made = 0
        self.importing: str | None = None
        """Name of the module that is being preloaded."""
        self._slots: dict[int, int] = {}  # pidfd -> pid
        self._poll = select.poll()
        self._cgroups = [
            (os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC), os.path.basename(path))
            for path in plan["cgroups"]
        ]

    def build(self) -> None:
        """Enter the file system view and import the modules to preload. Raises `OSError`, `ImportError`."""
        if self._root:
            libc.unshare(libc.CLONE_NEWNS)
        else:
            _own_user_namespace()
        mounts.build_root(self._plan["root"], self._plan["writable"])
        libc.become_subreaper()
        os.environ.pop("LD_BIND_NOW", None)
        sys.path_importer_cache.clear()  # it caches which paths were absent before
        program.start_of_interpreter()
        for name in self._plan["preload"]:
            self.importing = name
            __import__(name)
            if len(os.listdir("/proc/self/task")) > 1:
                raise ImportError(f"the module {name!r} starts threads when imported, so it cannot be preloaded")
        gc.collect()
        gc.freeze()

    def serve(self) -> None:
        """Serve requests until the owner ends."""
        for fd in (self._control.fileno(), self._owner):
            self._poll.register(fd, select.POLLIN)
        try:
            while True:
                for fd, _ in self._poll.poll():
                    if fd == self._owner:
                        return
                    if fd == self._control.fileno():
                        self._request(*channel.receive(self._control))
                    else:
                        self._ended(fd)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
        finally:
            self._close()

    def _request(self, request: dict[str, Any], fds: list[int]) -> None:
        control = socket(fileno=fds[0])
        try:
            pid = self._create(control, request)
        except slot.SlotError as error:
            channel.send(self._control, {"id": request["id"], "error": str(error)})
            return
        finally:
            control.close()
        pidfd = os.pidfd_open(pid)
        self._slots[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        channel.send(self._control, {"id": request["id"], "pid": pid}, [pidfd])

    def _create(self, control: socket, request: dict[str, Any]) -> int:
        return slot.create(control, self._plan, self._next_user())

    def _next_user(self) -> int | None:
        if not self._root:
            return None
        self._made += 1
        return _FIRST_USER + 2 * (os.getpid() * _MAX_SLOTS + self._made % _MAX_SLOTS) % _USERS

    def _ended(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(self._slots.pop(pidfd), 0)

    def _close(self) -> None:
        for pid in self._slots.values():
            os.kill(pid, _signal.SIGKILL)
        for pid in self._slots.values():
            os.waitpid(pid, 0)
        for parent, name in self._cgroups:
            _remove_cgroup(parent, name)


def _own_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
    libc.set_dumpable(True)
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _remove_cgroup(parent: int, name: str) -> None:
    """Remove a cgroup and all cgroups in it. Wait until the kernel has removed dead processes from them."""
    try:
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return
    below = [entry.name for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    for path, fd in [*((each, directory) for each in below), (name, parent)]:
        for _ in range(100):
            try:
                os.rmdir(path, dir_fd=fd)
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)
