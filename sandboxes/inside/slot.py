"""Make a slot: a fork of the template that is the first process of new namespaces and serves executions one by one."""

from __future__ import annotations

import _signal
import os
from _socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair

from agentloop.sandboxes.inside.isolation import libc, mounts
from agentloop.sandboxes.inside.isolation.confinement import Confinement
from agentloop.sandboxes.inside.world import World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

NAMESPACES = (
    libc.CLONE_NEWUSER
    | libc.CLONE_NEWPID
    | libc.CLONE_NEWNS
    | libc.CLONE_NEWIPC
    | libc.CLONE_NEWUTS
    | libc.CLONE_NEWCGROUP
)
_ANSWER = 4096


class SlotError(Exception):
    """A slot could not be made."""


def create(control: socket, plan: dict[str, Any], host_user: int | None) -> int:
    """Make a slot that serves `control` and return its pid. Raises `SlotError`.

    Two forks are needed: the first enters the namespaces, and only its child can be the first process of the pid
    namespace. On the host, the slot's root is user `host_user`, and the code is the next user; None maps only one user.
    """
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    alive = [os.fork()]
    if alive == [0]:
        ours.close()
        _enter(theirs, control, plan, host_user)
    theirs.close()
    try:
        expect(ours, b"entered")
        _map_users(alive[0], host_user)
        ours.send(b"mapped")
        alive.append(int(expect(ours)))
        os.waitpid(alive.pop(0), 0)
        ours.send(b"adopted")
        expect(ours, b"ready")
        return alive[0]
    except (SlotError, OSError) as error:
        for pid in alive:  # not reaped by others, so the pid still belongs to it
            os.kill(pid, _signal.SIGKILL)
            os.waitpid(pid, 0)
        raise SlotError(str(error)) from error
    finally:
        ours.close()


def expect(channel: socket, word: bytes = b"") -> bytes:
    """Return the next answer of the other side. Raises `SlotError` for an error and for any but `word`."""
    answer = channel.recv(_ANSWER)
    if not answer or answer.startswith(b"!"):
        raise SlotError(answer[1:].decode(errors="replace") or "it died during its setup")
    assert not word or answer == word, answer
    return answer


def _map_users(pid: int, host_user: int | None) -> None:
    mapping = "1000 1000 1\n" if host_user is None else f"0 {host_user} 1\n1000 {host_user + 1} 1\n"
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(mapping)


def _enter(template: socket, control: socket, plan: dict[str, Any], host_user: int | None) -> NoReturn:
    """Continue in the first fork, and in its child. Neither returns."""
    try:
        for number in (_signal.SIGINT, _signal.SIGTERM):
            _signal.signal(number, _signal.SIG_DFL)
        libc.close_all_but(template.fileno(), control.fileno())
        libc.unshare(NAMESPACES)
        libc.set_dumpable(True)  # so that the template may write the maps
        template.send(b"entered")
        expect(template, b"mapped")
        pid = os.fork()
        if pid != 0:
            template.send(str(pid).encode())
            os._exit(0)
        expect(template, b"adopted")
        confinement = _build(plan, host_user)
        libc.die_with_parent()  # last, because a change of user resets it
        template.send(b"ready")
        template.close()
        World(control, confinement).serve()
    except BaseException as error:
        if template.fileno() >= 0:
            template.send(f"!{type(error).__name__}: {error}".encode())
    finally:
        os._exit(1)


def _build(plan: dict[str, Any], host_user: int | None) -> Confinement:
    if host_user is not None:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        os.setgroups([])
    libc.unshare(libc.CLONE_NEWNET)  # not earlier: the owner of /proc/net is the slot's root if it is mapped
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    last_pid = mounts.mount_proc()
    if host_user is not None:
        mounts.hide_counters()
    libc.set_hostname("sandbox")
    libc.loopback_up()
    libc.drop_bounding_set()
    libc.no_new_privileges()
    libc.install_filter(plan["filter"])
    libc.set_dumpable(host_user is not None)  # unless the code is another user, it must not look into this process
    is_owner = host_user is not None
    scratch = mounts.Scratch(plan["writable"], plan["disk_mb"], plan["key"], is_owner=is_owner)

    def renew() -> None:
        scratch.renew()
        if last_pid >= 0:  # the next process gets the same number in every execution
            os.pwrite(last_pid, b"1", 0)

    return Confinement(directory=plan["directory"], user=None if host_user is None else 1000, renew=renew)
