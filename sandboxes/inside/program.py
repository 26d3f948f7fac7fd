"""Run main.py as `__main__` of this interpreter, as if python had been called with the file.

The interpreter is a fork of a warm one. This module restores what differs from a fresh one: the main module, the
random state, the frames of agentloop in tracebacks, and the shutdown of an interpreter.
"""

from __future__ import annotations

import _ast
import atexit
import builtins
import gc
import io
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

MAIN = "main.py"
_ONLY_AST = 0x400
_FUTURES = 0x1FF0000
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def start_of_interpreter() -> None:
    """Add the builtins that `site` adds, without its slow search for packages."""
    import _sitebuiltins

    vars(builtins)["exit"] = _sitebuiltins.Quitter("exit", "EOF")
    vars(builtins)["quit"] = _sitebuiltins.Quitter("quit", "EOF")
    vars(builtins)["help"] = _sitebuiltins._Helper()


def prepare(directory: str) -> None:
    """Set `sys` up for a program in `directory`. Once is enough, because every fork has its own copy.

    Afterwards nothing of agentloop can be imported.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "agentloop"]:
        del sys.modules[name]
    sys.argv[:] = [MAIN]
    sys.path[0] = directory
    if threading := sys.modules.get("threading"):
        _after_fork.append(threading._after_fork.__code__)
        threading._after_fork.__code__ = _nothing.__code__


_after_fork: list[types.CodeType] = []
"""The fork handler of `threading`. Forks made here have one thread and do not need it, which saves each execution a
hundred page faults. `begin` restores it for forks that the code makes."""


def _nothing() -> None:
    """Replace the fork handler of `threading`."""


def begin() -> dict[str, Any]:
    """Finish the setup in a fork and return the namespace of its main module.

    The fork gets a new random seed. The main module is new, so the garbage collector can free its objects.
    """
    if "numpy.random" in sys.modules:  # `random` does this by itself
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
    if _after_fork:
        sys.modules["threading"]._after_fork.__code__ = _after_fork[0]
    gc.enable()
    main = type(sys)("__main__")
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return vars(main)


def run(source: bytes, echo: bool) -> int:
    """Run the program and the shutdown of the interpreter; return the exit code."""
    main = begin()
    main["__file__"] = MAIN
    try:
        for code in _compile(source, echo):
            exec(code, main)
        status = 0
    except BaseException as error:
        status = _status(error)
    del main
    return end_of_interpreter(status)


def _compile(source: bytes, echo: bool) -> list[types.CodeType]:
    """Compile the program. With `echo`, compile a last expression separately, as code that prints its value."""
    if b"\0" in source:
        raise SyntaxError("source code cannot contain null bytes")
    if not echo:
        return [compile(source, MAIN, "exec", dont_inherit=True)]
    tree = compile(source, MAIN, "exec", flags=_ONLY_AST, dont_inherit=True)
    if not (tree.body and isinstance(tree.body[-1], _ast.Expr)):
        return [compile(tree, MAIN, "exec", dont_inherit=True)]
    last = _ast.Interactive([tree.body.pop()])
    body = compile(tree, MAIN, "exec", dont_inherit=True)
    return [body, compile(last, MAIN, "single", flags=body.co_flags & _FUTURES, dont_inherit=True)]


def without_own_frames(error: BaseException) -> None:
    """Remove agentloop's frames from the traceback of an exception, and from those of its causes."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _theirs(each.__traceback__)
        waiting += [each.__cause__, each.__context__]


def _theirs(traceback: types.TracebackType | None) -> types.TracebackType | None:
    kept = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith("<agentloop "):
            kept.append(traceback)
        traceback = traceback.tb_next
    following = None
    for link in reversed(kept):
        link.tb_next = following
        following = link
    return following


def _status(error: BaseException) -> int:
    """Return the exit code of a program that ended with this exception, and print the exception if necessary."""
    without_own_frames(error)
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as second:  # print both, like the interpreter
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _write_open_files() -> None:
    """Flush open files, because the collector may close a descriptor before its buffer is written."""
    for each in gc.get_objects():  # without the frozen objects of the template
        if type(each) in _BUFFERED and not each.closed and each.writable():
            each.flush()


def end_of_interpreter(status: int) -> int:
    """Wait for threads, call `atexit` functions, free the objects of the program (which writes open files), flush."""
    try:
        if threading := sys.modules.get("threading"):
            threading._shutdown()
        atexit._run_exitfuncs()
        _write_open_files()
        sys.modules.pop("__main__", None)
        gc.collect()
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException:
            status = 120
    return status
