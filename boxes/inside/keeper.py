"""The keeper: a process from which all boxes of an owner are forked, and which ends them when the owner ends.

If it runs as root, each box has its own range of users, which appear to own the files of its image.
"""

from __future__ import annotations

import _signal
import json
import os
from _socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair

from agentloop.boxes.inside import filesystem
from agentloop.boxes.inside.first_process import FirstProcess
from agentloop.sandboxes.inside import channel, slot, template
from agentloop.sandboxes.inside.isolation import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

_USERS = 1 << 16
_FIRST_USER = 0x60000000
_RANGES = 0x0FFF
"""Range of host users for boxes: above those of container managers, below those of slots."""
_CAPABILITIES = frozenset((0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31))
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT, AUDIT_WRITE and
SETFCAP: the usual capabilities of root in a container, without devices and raw sockets."""
_MOUNTS = 16
"""Maximum number of layers, whose descriptors have to fit into one message."""


def main(control_fd: int, plan: dict[str, Any]) -> None:
    """Serve the owner's requests for boxes until it ends."""
    template.main(control_fd, plan, Keeper)


class Keeper(template.Template):
    """Serves requests for boxes."""

    def build(self) -> None:
        """Enter a mount namespace. Raises `OSError`."""
        if self._root:
            libc.unshare(libc.CLONE_NEWNS)
        else:
            user, group = os.geteuid(), os.getegid()
            libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
            libc.set_dumpable(True)
            _write_maps("self", user, group, 1)
        libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
        libc.become_subreaper()

    def _create(self, control: socket, request: dict[str, Any]) -> int:
        self._made += 1
        first = _FIRST_USER + _USERS * ((os.getpid() * 64 + self._made) % _RANGES) if self._root else None
        return _create(control, self._plan["filter"], request, first)


def _write_maps(pid: int | str, user: int, group: int, count: int) -> None:
    if count == 1:
        with open(f"/proc/{pid}/setgroups", "w") as file:
            file.write("deny")
    for name, first in (("uid_map", user), ("gid_map", group)):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(f"0 {first} {count}\n")


def _create(control: socket, filter: bytes, request: dict[str, Any], first_user: int | None) -> int:
    """Make a box that serves `control` and return its pid. Raises `SlotError`.

    It takes two forks: the first enters the namespaces, and only its child can be the first process of the pid
    namespace. Outside, `first_user` is the root of the box; None maps this user only.
    """
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    alive = [os.fork()]
    if alive == [0]:
        ours.close()
        _enter(theirs, control, filter, request)
    theirs.close()
    mounts: list[int] = []
    try:
        slot.expect(ours, b"entered")
        if first_user is None:
            _write_maps(alive[0], 0, 0, 1)
        else:
            _write_maps(alive[0], first_user, first_user, _USERS)
            mounts = _mounts(request["layers"], alive[0])
        channel.send(ours, {"mounts": len(mounts)})
        for first in range(0, len(mounts), _MOUNTS):
            channel.send(ours, {}, mounts[first : first + _MOUNTS])
        alive.append(int(slot.expect(ours)))
        os.waitpid(alive.pop(0), 0)
        ours.send(b"adopted")
        slot.expect(ours, b"ready")
        return alive[0]
    except (slot.SlotError, OSError) as error:
        for pid in alive:  # not reaped by others, so the pid still belongs to it
            os.kill(pid, _signal.SIGKILL)
            os.waitpid(pid, 0)
        raise slot.SlotError(str(error)) from error
    finally:
        ours.close()
        for fd in mounts:
            os.close(fd)


def _mounts(layers: Sequence[str], pid: int) -> list[int]:
    namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return [libc.mount_with_ids(layer, namespace) for layer in layers]
    finally:
        os.close(namespace)


def _enter(keeper: socket, control: socket, filter: bytes, request: dict[str, Any]) -> NoReturn:
    """Continue in the first fork, and in its child. Neither returns."""
    try:
        for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
            _signal.signal(number, _signal.SIG_DFL)
        libc.close_all_but(keeper.fileno(), control.fileno())
        libc.unshare(libc.CLONE_NEWUSER)
        libc.set_dumpable(True)  # so that the keeper may write the maps
        keeper.send(b"entered")
        count = channel.receive(keeper)[0]["mounts"]
        mounts: list[int] = []
        while len(mounts) < count:
            mounts += channel.receive(keeper)[1]
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        if mounts:
            os.setgroups([])
        libc.unshare(slot.NAMESPACES & ~libc.CLONE_NEWUSER | libc.CLONE_NEWNET)
        pid = os.fork()
        if pid != 0:
            keeper.send(str(pid).encode())
            os._exit(0)
        slot.expect(keeper, b"adopted")
        content = None
        if request["is_fork"]:
            keeper.send(b"ready")  # the keeper can make other boxes while this one is filled
            keeper.close()
            _, (content,) = channel.receive(control)
        layers = mounts or request["layers"]
        own_layer = filesystem.build_root(
            layers, request["storage_mb"], request["hostname"], request["workdir"], content
        )
        if content is not None:
            os.close(content)
        libc.drop_bounding_set(keep=_CAPABILITIES)
        libc.install_filter(filter)  # needs a capability, since programs that grant rights (su) must work in a box
        libc.keep_capabilities(_CAPABILITIES)
        libc.set_command_line("init")  # the command line has paths of the host
        libc.set_dumpable(False)
        libc.die_with_parent()  # last: a change of user resets it
        if keeper.fileno() >= 0:
            keeper.send(b"ready")
            keeper.close()
        FirstProcess(control, own_layer).serve()
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        if keeper.fileno() >= 0:
            keeper.send(f"!{text}".encode())
        else:
            channel.say(control, json.dumps({"id": 1, "error": text}).encode())  # the owner waits for its first answer
    finally:
        os._exit(1)
