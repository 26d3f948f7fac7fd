"""Python processes that start at once: forked from a process that has done the slow imports, not from an interpreter.

    warm process (imports torch, agentloop)
      fork -> `agentloop ARGUMENTS`, a run of a test             `started`
                fork -> its own warm process, for its Ray
      fork -> Ray's workers and agents                           `warm_ray`

A forked process has the arguments, environment, folder and open files that its program was started with, and ends as
an interpreter ends. Ray starts its programs with a script in place of Python, which stands for the forked process: it
has its exit code, and if it is killed, so is the process. This is for tests of what processes do once they run; an
interpreter that starts from nothing needs many seconds for its imports.
"""

import argparse
import array
import atexit
import ctypes
import gc
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

_IMPORTED = [
    "agentloop.cli.train",
    "agentloop.api.progress",
    "agentloop.trainer.run.train",
    "agentloop.trainer.workers.ray.pool",
    "agentloop.trainer.cluster.learner_ranks",
    "agentloop.trainer.learner.fsdp.learner",
    "agentloop.recipes.tiny.tokenizer",
    "transformers.models.qwen3.modeling_qwen3",
    # What Ray imports. Ray itself takes settings from the environment of each process as it is imported.
    "aiohttp.web",
    "google.protobuf.json_format",
    "google.protobuf.text_format",
    "jsonschema",
    "psutil",
    "requests",
    "uvloop",
    "wcwidth",
]
_MOST_FILES = 64
_PR_SET_PDEATHSIG = 1
_STAND_IN = """#!{python} -IS
import array, json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
files = sorted(int(name) for name in os.listdir("/proc/self/fd"))
files = [file for file in files if file != server.fileno() and os.path.exists("/proc/self/fd/%d" % file)]
blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
task = dict(arguments=sys.argv[1:], environment=dict(os.environ), folder=os.getcwd(), files=files, blocked=blocked)
data = json.dumps(task).encode()
head = len(data).to_bytes(8, "big")
server.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
server.sendall(data)
server.recv(8, socket.MSG_WAITALL)
for file in files:
    os.close(file)
code = int.from_bytes(server.recv(4, socket.MSG_WAITALL) or b"\\1", "big", signed=True)
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code & 255)
"""


class Forked:
    """A process that runs the command `agentloop`, with the names of `multiprocessing.Process`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
        self._code: int | None = None

    @property
    def exitcode(self) -> int | None:
        """Its exit code; None while it runs."""
        with suppress(TimeoutError):
            self.join(1e-6)
        return self._code

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end. Raises `TimeoutError`."""
        if self._code is None:
            self._connection.settimeout(timeout)
            answer = self._connection.recv(4, socket.MSG_WAITALL)
            assert answer, "the warm process has ended"
            self._code = int.from_bytes(answer, "big", signed=True)

    def kill(self) -> None:
        """Kill it."""
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)


def start(arguments: Sequence[object], output: Path) -> Forked:
    """Run `agentloop arguments...` in a session of its own, with its output in a file."""
    words = ["agentloop", *(str(argument) for argument in arguments)]
    task = {"arguments": words, "environment": dict(os.environ), "folder": str(Path.cwd())}
    data = json.dumps(task | {"files": [0, 1, 2], "blocked": []}).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_address())
    with output.open("wb") as file, Path(os.devnull).open("rb") as nothing:
        files = array.array("i", [nothing.fileno(), file.fileno(), file.fileno()])
        connection.sendmsg([len(data).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        connection.sendall(data)
    return Forked(connection)


@contextmanager
def started(arguments: Sequence[object], output: Path) -> Iterator[Forked]:
    """`start`, and kill the process at the end."""
    process = start(arguments, output)
    try:
        yield process
    finally:
        process.kill()
        process.join()


@contextmanager
def warm_ray() -> Iterator[None]:
    """Let this process start Ray's processes by forks."""
    before = _start_ray_from(_address())
    try:
        yield
    finally:
        _services().sys = before


def _start_ray_from(address: str) -> Any:
    services = _services()
    before, services.sys = services.sys, _SysOf(f"{address}.python")
    return before


def _services() -> Any:
    import ray._private.services

    return ray._private.services


class _SysOf:
    """`sys` with another interpreter."""

    def __init__(self, executable: str) -> None:
        self.executable = executable

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


@cache
def _address() -> str:
    """Return the address of the warm process of this process."""
    folder = tempfile.mkdtemp(prefix="warm-")
    atexit.register(shutil.rmtree, folder)
    address = f"{folder}/server"
    listener = _listen(address)
    command = [sys.executable, __file__, address, str(listener.fileno())]
    process = subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)
    listener.close()
    atexit.register(process.wait)
    atexit.register(process.kill)
    return address


def _listen(address: str) -> socket.socket:
    """Return a socket at the address, and write the program beside it that stands for processes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    program = Path(f"{address}.python")
    program.write_text(_STAND_IN.format(python=sys.executable, address=address))
    program.chmod(0o700)
    return listener


def _serve(listener: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a process for each request. Returns the request and its files in the forked process only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    chosen = selectors.DefaultSelector()
    chosen.register(listener, selectors.EVENT_READ)
    running: dict[int, tuple[int, int]] = {}
    """Processes by connection: their ids and descriptors."""
    connections: dict[int, socket.socket] = {}
    while True:
        for key, _ in chosen.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                try:
                    task, files = _received(connection)
                except (OSError, ValueError):  # it was killed meanwhile
                    connection.close()
                    continue
                pid = os.fork()
                if not pid:
                    chosen.close()
                    for each in (listener, connection, *connections.values()):
                        each.close()
                    for _, descriptor in running.values():
                        os.close(descriptor)
                    return task, files
                for file in files:
                    os.close(file)
                with suppress(OSError):
                    connection.sendall(pid.to_bytes(8, "big"))
                number, descriptor = connection.fileno(), os.pidfd_open(pid)
                running[number], connections[number] = (pid, descriptor), connection
                chosen.register(connection, selectors.EVENT_READ)
                chosen.register(descriptor, selectors.EVENT_READ, number)
            elif key.data is None:  # the program that stands for the process has ended
                chosen.unregister(key.fileobj)
                os.kill(running[key.fd][0], signal.SIGKILL)
            else:
                pid, descriptor = running.pop(key.data)
                connection = connections.pop(key.data)
                with suppress(KeyError):
                    chosen.unregister(connection)
                chosen.unregister(descriptor)
                os.close(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(OSError):
                    connection.sendall(code.to_bytes(4, "big", signed=True))
                connection.close()


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, files, _, _ = socket.recv_fds(connection, 8, _MOST_FILES)
    size = int.from_bytes(head, "big")
    return json.loads(connection.recv(size, socket.MSG_WAITALL)), files


def _be(task: Mapping[str, Any], files: Sequence[int]) -> list[str]:
    """Turn this process into one that was started for the request; return its arguments."""
    import fcntl

    above = max([*files, *task["files"]]) + 1
    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file, number in zip(high, task["files"], strict=True):
        os.dup2(file, number)
    for file in {*high, *files} - set(task["files"]):
        os.close(file)
    os.environ.clear()
    os.environ.update(task["environment"])
    os.chdir(task["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, task["blocked"])
    arguments: list[str] = task["arguments"]
    return arguments[1:] if arguments[0] == "-u" else arguments


def _be_the_worker(arguments: Sequence[str]) -> list[str]:
    """Apply what Ray's setup_worker.py applies before it starts the program of the worker; return its arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    options, rest = parser.parse_known_args(arguments)
    os.environ.update(json.loads(options.serialized_runtime_env_context).get("env_vars", {}))
    return rest


def _run(arguments: list[str], server: int) -> None:
    if arguments[0] == "agentloop":
        from agentloop.cli import main

        sys.argv, sys.path[0] = arguments, ""
        main()
        return
    if arguments[0].endswith("/setup_worker.py"):
        arguments = _be_the_worker(arguments[1:])
    else:
        _end_with(server)  # Ray ends its other processes with their parent; workers end by themselves
    sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
    runpy.run_path(arguments[0], run_name="__main__")


def _main() -> None:
    address, listener = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    _end_with(os.getppid())
    for name in _IMPORTED:
        __import__(name)
    gc.freeze()  # no fork copies what is here to look for garbage
    while True:
        server = os.getpid()
        task, files = _serve(listener)
        arguments = _be(task, files)
        if arguments[0] != "agentloop":
            break
        gc.unfreeze()  # it ends as an interpreter ends, which frees all
        os.setsid()
        run = os.getpid()
        address = f"{Path(address).parent}/{run}"
        listener = _listen(address)
        if os.fork():
            listener.close()
            _start_ray_from(address)
            break
        _end_with(run)
    _run(arguments, server)


def _end_with(parent: int) -> None:
    """Let this process be killed when its parent ends, as Ray lets its processes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    _main()
