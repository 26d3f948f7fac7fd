"""Follow a script: every program in it is recorded and counts as having succeeded, and none is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import singledispatch

from agentloop.trainer.from_verl.shell.arithmetic import evaluate
from agentloop.trainer.from_verl.shell.builtins import BUILTINS, Leave
from agentloop.trainer.from_verl.shell.conditions import holds
from agentloop.trainer.from_verl.shell.expansion import fields_of, pattern_from, subscript, text_of
from agentloop.trainer.from_verl.shell.programs import PROGRAMS
from agentloop.trainer.from_verl.shell.state import Array, Record, Shell
from agentloop.trainer.from_verl.shell.statements import Reader
from agentloop.trainer.from_verl.shell.syntax import (
    DECLARES,
    AndOr,
    Assignment,
    Case,
    Command,
    Count,
    Evaluate,
    For,
    Function,
    Group,
    If,
    Loop,
    Output,
    Pipeline,
    Redirect,
    Redirected,
    Simple,
    Test,
    Word,
)
from agentloop.trainer.from_verl.shell.unknown import OUTPUT, Unreadable, marks, plain, safe

_MAX_DEPTH = 40
"""Compound commands, functions and substitutions inside each other while a script is followed."""
_SILENT = ("mkdir", "rm", "cp", "mv", "ln", "touch", "chmod", "sleep", "pkill")
"""Programs that print nothing."""


def follow(text: str, script: str, arguments: Sequence[str], variables: Mapping[str, str]) -> Record:
    """Follow a script with its arguments, and with `variables` as its environment. Raises nothing for any text."""
    record = Record(script)
    known: dict[str, str | Array] = {name: safe(value) for name, value in variables.items()}
    shell = Shell(record, known, _output_of, tuple(map(safe, arguments)))
    try:
        _lines(Reader(safe(text)), shell)
    except Leave:
        pass  # exit, or a break outside any loop
    except Unreadable as error:
        record.complaint = plain(str(error))
    except RecursionError:
        record.complaint = "it is nested too deeply"
    record.printed = "".join(shell.output)
    return record


def _lines(reader: Reader, shell: Shell) -> None:
    while True:
        start = reader.at
        statements = reader.next_line()
        if not statements:
            return
        try:
            _all(statements, shell)
        except Unreadable as error:
            line = reader.line(start + len(reader.text[start:]) - len(reader.text[start:].lstrip()))
            raise error if str(error).startswith("line ") else Unreadable(f"line {line}: {error}") from error


def _all(statements: tuple[AndOr, ...], shell: Shell) -> None:
    for statement in statements:
        for operator, pipeline in statement.parts:
            if not operator or (operator == "&&") == (shell.status == 0):
                _pipeline(pipeline, shell)


def _pipeline(pipeline: Pipeline, shell: Shell) -> None:
    if len(pipeline.commands) == 1:
        _command(pipeline.commands[0], shell)
    else:
        stdin = shell.stdin
        for command in pipeline.commands:
            inner = shell.copy(stdin)
            with suppress(Leave):
                _command(command, inner)
            stdin = "".join(inner.output)
            shell.status = inner.status
        shell.print(stdin)
    if pipeline.negated:
        shell.status = int(not shell.status)


def _output_of(shell: Shell, part: Output) -> str:
    inner = shell.copy("")
    before = len(shell.record.commands)
    with _deeper(inner), suppress(Leave):
        _all(part.body, inner)
    shell.status = inner.status
    printed = "".join(inner.output)
    if not printed.strip() and len(shell.record.commands) > before:
        return shell.record.unknowns.mark(f"{OUTPUT} {_short(part.source)}, which does not run")
    return printed


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 80 else f"{text[:77]}..."


@contextmanager
def _deeper(shell: Shell) -> Iterator[None]:
    shell.depth += 1
    if shell.depth > _MAX_DEPTH:
        raise Unreadable("it is nested too deeply, as if a function called itself without end")
    try:
        yield
    finally:
        shell.depth -= 1


def _command(command: Command, shell: Shell) -> None:
    shell.record.spend(5)
    with _deeper(shell):
        _run(command, shell)


@singledispatch
def _run(command: Command, shell: Shell) -> None:
    raise AssertionError(command)


@_run.register
def _(command: Group, shell: Shell) -> None:
    if not command.subshell:
        _all(command.body, shell)
        return
    inner = shell.copy()
    with suppress(Leave):
        _all(command.body, inner)
    shell.print("".join(inner.output))
    shell.status = inner.status


@_run.register
def _(command: If, shell: Shell) -> None:
    for condition, body in command.branches:
        if condition is not None:
            _all(condition, shell)
        if condition is None or shell.status == 0:
            shell.status = 0
            _all(body, shell)
            return
    shell.status = 0


@contextmanager
def _turn(going: list[bool]) -> Iterator[None]:
    """Run the body of a loop once; `going` becomes empty if it ends the loop."""
    try:
        yield
    except Leave as leave:
        if leave.kind not in ("break", "continue"):
            raise
        if leave.levels > 1:
            raise Leave(leave.kind, leave.levels - 1) from None
        if leave.kind == "break":
            going.clear()


@_run.register
def _(command: Loop, shell: Shell) -> None:
    going = [True]
    while going:
        shell.record.spend(5)
        with _turn(going):
            _all(command.condition, shell)
            if (shell.status == 0) == command.until:
                break
            _all(command.body, shell)
    shell.status = 0


@_run.register
def _(command: For, shell: Shell) -> None:
    going = [True]
    for value in shell.parameters if command.words is None else fields_of(command.words, shell):
        if not going:
            break
        shell.set(command.name, value)
        with _turn(going):
            _all(command.body, shell)


@_run.register
def _(command: Count, shell: Shell) -> None:
    going = [True]
    _value(command.first, shell)
    while going and (not command.condition or _value(command.condition, shell)):
        shell.record.spend(5)
        with _turn(going):
            _all(command.body, shell)
        _value(command.step, shell)


def _value(expression: Word, shell: Shell) -> int:
    return int(plain(evaluate(text_of(expression, shell), shell)))


@_run.register
def _(command: Case, shell: Shell) -> None:
    value = plain(text_of(command.word, shell))
    shell.status = 0
    end = ""
    for patterns, body, terminator in command.items:
        matched = end == ";&"
        for pattern in () if matched else patterns:
            compiled = pattern_from(pattern, shell)
            shell.record.spend((1 + len(value)) * (1 + len(compiled.parts)) // 8)
            matched = matched or compiled.matches(value)
        if matched:
            _all(body, shell)
            end = terminator
            if end not in (";&", ";;&"):
                return


@_run.register
def _(command: Function, shell: Shell) -> None:
    shell.functions[command.name] = command.body
    shell.status = 0


@_run.register
def _(command: Evaluate, shell: Shell) -> None:
    shell.status = int(_value(command.expression, shell) == 0)


@_run.register
def _(command: Test, shell: Shell) -> None:
    shell.status = int(not holds(command, shell))


@_run.register
def _(command: Redirected, shell: Shell) -> None:
    stdin, discards = shell.stdin, False
    for redirect in command.redirects:
        if redirect.operator in ("<", "<<<", "<<", "<<-"):
            shell.stdin = _input(redirect, shell)
        elif redirect.descriptor == 1 or redirect.operator.startswith("&"):
            discards = discards or text_of(redirect.target, shell) != "1"
    output = shell.output
    if discards:
        shell.output = []
    try:
        _command(command.command, shell)
    finally:
        shell.stdin, shell.output = stdin, output


def _input(redirect: Redirect, shell: Shell) -> str:
    if redirect.operator == "<":
        name = _short(plain(text_of(redirect.target, shell)))
        return "" if name == "/dev/null" else shell.record.unknowns.mark(f"the file {name}, which is not read")
    if redirect.operator == "<<<":
        return text_of(redirect.target, shell) + "\n"
    return "".join(text_of(word, shell) for word in redirect.document)


@_run.register
def _(command: Simple, shell: Shell) -> None:
    if not command.words:
        shell.status = 0
        for assignment in command.assignments:
            _assign(assignment, shell)
        return
    first, *rest = command.words
    assert not isinstance(first, Assignment)
    words = fields_of([first], shell)
    if words and words[0] in DECLARES:
        _declare(words[0], rest, shell)
        return
    words += fields_of([word for word in rest if not isinstance(word, Assignment)], shell)
    kept = {each.name: shell.variables.get(each.name) for each in command.assignments}
    for assignment in command.assignments:
        _assign(assignment, shell)
    try:
        if words:
            _start(words, shell)
    finally:
        for name, value in kept.items():
            _restore(name, value, shell)


def _restore(name: str, value: str | Array | None, shell: Shell) -> None:
    if value is None:
        shell.unset(name)
    else:
        shell.variables[name] = value


def _assign(assignment: Assignment, shell: Shell) -> None:
    name = assignment.name
    old = shell.variables.get(name)
    array: Array = dict(old) if isinstance(old, dict) else {0: old} if old is not None else {}
    if assignment.value is None:
        array = array if assignment.append else {}
        for index, word in assignment.elements:
            if index is not None:
                array[subscript(name, index, shell)] = text_of(word, shell)
                continue
            for value in fields_of([word], shell):
                array[max((key for key in array if isinstance(key, int)), default=-1) + 1] = value
        shell.set(name, array)
        return
    value = text_of(assignment.value, shell)
    if assignment.index is None and not isinstance(old, dict):
        shell.set(name, f"{old or ''}{value}" if assignment.append else value)
        return
    key = 0 if assignment.index is None else subscript(name, assignment.index, shell)
    shell.set(name, array | {key: array.get(key, "") + value if assignment.append else value})


def _declare(kind: str, words: Sequence[Word | Assignment], shell: Shell) -> None:
    shell.status = 0
    options = ""
    for word in words:
        name = word.name if isinstance(word, Assignment) else ""
        if not isinstance(word, Assignment):
            text = " ".join(fields_of([word], shell))
            if text.startswith(("-", "+")):
                options += text
                continue
            name, equals, value = text.partition("=")
            if equals:
                shell.set(name, value)
        if "n" in options and kind != "export":
            raise Unreadable(f"{kind} -n is not read")
        if shell.functions_deep and kind != "export" and "g" not in options:
            shell.restored.append((name, shell.variables.get(name)))
            if isinstance(word, Assignment) and not word.append:
                shell.unset(name)
        if "A" in options:
            shell.associative |= {name}
        if isinstance(word, Assignment):
            _assign(word, shell)
        elif kind == "local" and name:
            shell.set(name, "")


def _start(words: list[str], shell: Shell) -> None:
    """Run a function, builtin or small program, or record any other program."""
    while words[0] in ("command", "builtin", "exec") and len(words) > 1:
        if words[1] in ("-v", "-V"):
            shell.status = 1
            return
        if words[0] == "exec":
            _start(words[1:], shell)
            raise Leave("exit")
        words = words[1:]
    name = words[0]
    if name in shell.functions:
        _call(shell.functions[name], words[1:], shell)
    elif name == "eval":
        _lines(Reader(" ".join(words[1:])), shell)
    elif name in BUILTINS:
        shell.status = BUILTINS[name](words[1:], shell)
    elif name not in PROGRAMS or not _compute(words, shell):
        _record(words, shell)


def _compute(words: list[str], shell: Shell) -> bool:
    printed = PROGRAMS[words[0]](words[1:], shell)
    if printed is None:
        return False
    shell.record.spend(len(shell.stdin))
    shell.print(marks(shell.stdin) if marks(shell.stdin) and words[0] != "cat" else printed)
    shell.stdin = ""
    shell.status = 0
    return True


def _record(words: list[str], shell: Shell) -> None:
    shell.record.commands.append(words)
    code = words[0].startswith("python") and words[1:2] in (["-c"], ["-"])
    shell.status = int(code or words[0].startswith("curl"))  # these ask for something that is not there
    if shell.status == 0 and words[0] not in _SILENT:
        shell.print(shell.record.unknowns.mark(f"{OUTPUT} {_short(plain(' '.join(words)))}, which does not run"))


def _call(body: Command, words: list[str], shell: Shell) -> None:
    parameters, restored = shell.parameters, shell.restored
    shell.parameters, shell.restored = tuple(words), []
    shell.functions_deep += 1
    try:
        _command(body, shell)
    except Leave as leave:
        if leave.kind != "return":
            raise
    finally:
        for name, value in reversed(shell.restored):
            _restore(name, value, shell)
        shell.parameters, shell.restored = parameters, restored
        shell.functions_deep -= 1
