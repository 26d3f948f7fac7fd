"""`Edit`: shows and changes text files in the box of the episode."""

from __future__ import annotations

from typing import Annotated, Literal

from agentloop.boxes.interface.box import BoxError, BoxResult
from agentloop.errors import FailureKind, ToolError
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.machine.arguments import check_path, encoded
from agentloop.tools.machine.episode_box import EpisodeBox, episode_box_of
from agentloop.types.limits import StopReason

_FILE_BYTES = 4 << 20
_AROUND = 4
"""Number of lines to show before and after a change."""


class Edit(Tool):
    """View and change text files. `view` shows a file with line numbers, or lists a directory. `create` writes
    `file_text`. `str_replace` replaces `old_str`, which must occur exactly once, with `new_str`. `insert` inserts
    `new_str` after line `insert_line`.
    """  # noqa: D205 - the description that models read

    name = "edit"
    needs_box = True
    timeout = 60.0

    async def call(
        self,
        ctx: ToolContext,
        command: Literal["view", "create", "str_replace", "insert"],
        path: Annotated[str, "Path of the file; relative paths begin at the first working directory"],
        view_range: Annotated[list[int] | None, "First and last line to view"] = None,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: Annotated[int | None, "Line number; 0 inserts at the beginning"] = None,
    ) -> ToolResult:
        machine = episode_box_of(ctx)
        check_path(path)
        try:
            return ToolResult(await _edit(machine, command, path, view_range, file_text, old_str, new_str, insert_line))
        except _RefusedError as error:
            return ToolResult(str(error), is_error=True)
        except BoxError as error:
            return ToolResult(str(error), is_error=True, failure=FailureKind.ENV, stop=StopReason.ENV_ERROR)


class _RefusedError(ToolError):
    """The change is not possible. The message is for the model."""


async def _edit(
    machine: EpisodeBox,
    command: str,
    path: str,
    view_range: list[int] | None,
    file_text: str | None,
    old_str: str | None,
    new_str: str | None,
    insert_line: int | None,
) -> str:
    if command == "create":
        if file_text is None:
            raise _RefusedError("`create` needs `file_text`.")
        await _write(machine, path, encoded(file_text, "file_text"))
        return f"Wrote {path}."
    if command == "view":
        return await _view(machine, path, view_range)
    text = await _read(machine, path)
    if new_str is None:
        raise _RefusedError(f"`{command}` needs `new_str`.")
    if command == "str_replace":
        if not old_str:
            raise _RefusedError("`str_replace` needs `old_str`.")
        if (count := text.count(old_str)) != 1:
            raise _RefusedError(f"`old_str` occurs {count} times in {path}, not once: nothing was changed.")
        first = text[: text.index(old_str)].count("\n") + 1
        changed = text.replace(old_str, new_str)
    else:
        lines = [line + "\n" for line in _lines(text)]
        if lines and not text.endswith("\n"):
            lines[-1] = lines[-1][:-1]
        if insert_line is None or not 0 <= insert_line <= len(lines):
            raise _RefusedError(f"`insert` needs an `insert_line` from 0 to {len(lines)}.")
        if insert_line and not lines[insert_line - 1].endswith("\n"):
            lines[insert_line - 1] += "\n"
        first = insert_line + 1
        added = new_str if new_str.endswith("\n") or insert_line == len(lines) else new_str + "\n"
        changed = "".join([*lines[:insert_line], added, *lines[insert_line:]])
    await _write(machine, path, encoded(changed, "new_str"))  # the old text was decoded from UTF-8
    last = first + new_str.count("\n")
    return f"Changed {path}:\n{_numbered(_lines(changed), first - _AROUND, last + _AROUND)}"


async def _view(machine: EpisodeBox, path: str, view_range: list[int] | None) -> str:
    listing = await _run(machine, '[ -d "$1" ] && ls -Ap -- "$1"', path)
    if listing.return_code == 0:
        return listing.stdout
    lines = _lines(await _read(machine, path))
    first, last = 1, len(lines)
    if view_range is not None:
        if len(view_range) != 2 or not 1 <= view_range[0] <= max(last, 1):
            raise _RefusedError(f"`view_range` is [first, last], from 1 to {last}.")
        first, last = view_range[0], last if view_range[1] < 0 else view_range[1]
    return _numbered(lines, first, last)


def _lines(text: str) -> list[str]:
    """Return the lines as grep and compilers count them: `str.splitlines` also ends lines at form feeds and others."""
    return text.removesuffix("\n").split("\n") if text else []


def _numbered(lines: list[str], first: int, last: int) -> str:
    first = max(first, 1)
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))


async def _read(machine: EpisodeBox, path: str) -> str:
    result = await _run(machine, 'cat -- "$1"', path)
    if result.return_code != 0:
        raise _RefusedError(f"{path} cannot be read: {result.stderr.strip()}")
    if result.output_truncated or "\ufffd" in result.stdout:
        raise _RefusedError(f"{path} is not a text file of at most {_FILE_BYTES >> 20} MiB: use bash.")
    return result.stdout


async def _write(machine: EpisodeBox, path: str, content: bytes) -> None:
    script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
    result = await _run(machine, script, path, content)
    if result.return_code != 0:
        raise _RefusedError(f"{path} cannot be written: {result.stderr.strip()}")


async def _run(machine: EpisodeBox, script: str, path: str, stdin: bytes = b"") -> BoxResult:
    command = ["/bin/sh", "-c", script, "sh", path]
    return await machine.box.exec(command, user=machine.user, stdin=stdin, timeout=50, output_bytes=_FILE_BYTES)
