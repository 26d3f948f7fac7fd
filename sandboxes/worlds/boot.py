"""Start an interpreter that runs modules of `inside`, sent as code objects so that no file must be visible there."""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

from agentloop.sandboxes.worlds.streams import memory_file

INTERPRETER = os.path.realpath(sys.executable)

_MODULES = tuple(
    f"agentloop.sandboxes.inside.{name}"
    for name in (
        *("channel", "isolation.libc", "isolation.cleanup", "isolation.confinement", "isolation.mounts", "files"),
        *("program", "displays", "repl", "steps", "endings", "world", "slot", "template", "single"),
    )
)
"""Modules to send inside, in the order in which they import one another."""

_BOOT = """
import marshal, os, sys, types
with open(int(sys.argv[1]), "rb") as file:
    modules, entry, arguments = marshal.load(file)
def add(name):
    parent, _, own = name.rpartition(".")
    if parent and parent not in sys.modules:
        add(parent).__path__ = []
    module = sys.modules[name] = types.ModuleType(name)
    if parent:
        setattr(sys.modules[parent], own, module)
    return module
for name, code in modules:
    module = add(name)
    own = name.rpartition(".")[2]
    if isinstance(code, str):
        code = compile(code, f"<agentloop {own}>", "exec")
    exec(code, vars(module))
sys.modules[entry].main(int(sys.argv[2]), arguments)
"""
_CONNECT = """
import socket, sys
control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
control.connect("{address}")
_, fds, _, _ = socket.recv_fds(control, 65536, 1, socket.MSG_CMSG_CLOEXEC)
sys.argv[1:] = [str(fds[0]), str(control.detach())]
"""
_FLAGS = ("-S", "-s", "-B", "-u", "-c", _BOOT)


def command(source_fd: int, control_fd: int, flags: Sequence[str] = ()) -> list[str]:
    """Return a command line that reads `source` from one descriptor and talks to its owner through another."""
    return [INTERPRETER, *flags, *_FLAGS, str(source_fd), str(control_fd)]


def container_command(address: str) -> list[str]:
    """Return the command line for a container. It gets no descriptors; its owner listens and sends `source`."""
    return ["python3", "-s", "-B", "-u", "-c", _CONNECT.format(address=address) + _BOOT]


def source(entry: str, arguments: dict[str, Any], modules: Sequence[str] = (), *, portable: bool = False) -> int:
    """Return a descriptor with the modules and the name of the one whose `main(control_fd, arguments)` will run.

    `entry` is the name of a module of `inside`, or the full name of one of `modules`. These are further modules to
    send, which import only the standard library and one another. `portable`: whether to send source text, for an
    interpreter that may have another version.
    """
    names = (*_MODULES, *modules)
    entry = entry if entry in modules else f"agentloop.sandboxes.inside.{entry}"
    parts = [(name, _text(name)) for name in names] if portable else _code(names)
    return memory_file([marshal.dumps((parts, entry, arguments), 4)])


@cache
def _code(names: tuple[str, ...]) -> tuple[tuple[str, CodeType], ...]:
    return tuple((name, compile(_text(name), f"<agentloop {name.rpartition('.')[2]}>", "exec")) for name in names)


def _text(name: str) -> str:
    spec = find_spec(name)
    assert spec is not None, name
    assert spec.origin is not None, name
    return Path(spec.origin).read_text()
