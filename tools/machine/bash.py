"""`Bash`: runs commands in the box of the episode, in one shell."""

from __future__ import annotations

import asyncio
from typing import Annotated

from agentloop.boxes.interface.box import BoxError
from agentloop.errors import FailureKind, UserError
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.machine.episode_box import episode_box_of
from agentloop.tools.machine.shell import Shell, ShellResult
from agentloop.types.limits import StopReason


class Bash(Tool):
    """Run a command in a shell and return what it prints. Working directory, variables and jobs are kept for the next
    call. Commands get no input. One that takes too long is interrupted: start servers in the background with `&`.
    """  # noqa: D205 - the description that models read

    needs_box = True

    def __init__(self, *, timeout: float = 120.0, max_output_bytes: int = 32768) -> None:
        """Allow each command `timeout` seconds, and keep `max_output_bytes` of its output."""
        if timeout <= 0 or max_output_bytes < 256:
            raise UserError("The tool bash needs a `timeout` above 0, and at least 256 `max_output_bytes`.")
        self._seconds = timeout
        self._max_output_bytes = max_output_bytes
        self.timeout = timeout + 30.0  # an interrupted command may take its time

    async def open(self, ctx: ToolContext) -> tuple[Shell, asyncio.Lock]:
        machine = episode_box_of(ctx)
        return Shell(machine.box, machine.user, output_bytes=self._max_output_bytes), asyncio.Lock()

    async def close(self, ctx: ToolContext) -> None:
        if episode_box_of(ctx).box is not None:
            await ctx.state[0].close()

    async def call(self, ctx: ToolContext, command: Annotated[str, "Command, or several lines of them"]) -> ToolResult:
        shell, lock = ctx.state
        machine = episode_box_of(ctx)
        async with lock:  # calls of one turn arrive together and run in order
            seconds = min(self._seconds, ctx.seconds_left, machine.seconds_left)
            try:
                result = await shell.run(command, seconds)
            except BoxError as error:
                return ToolResult(str(error), is_error=True, failure=FailureKind.ENV, stop=StopReason.ENV_ERROR)
        return ToolResult(
            _with_notes(result, seconds),
            is_error=result.return_code != 0,
            stop=StopReason.MAX_SECONDS if machine.seconds_left <= 0 else False,
            metrics={"timed_out": float(result.timed_out), "ok": float(result.return_code == 0)},
        )


def _with_notes(result: ShellResult, seconds: float) -> str:
    """Return the output of a command for the model, with notes on an abnormal end."""
    notes = []
    if result.shell_was_lost:
        notes.append("[the shell had ended since the last command; this command ran in a new one]")
    if result.timed_out:
        notes.append(f"[interrupted after {seconds:.3g} s]")
    elif result.return_code:
        notes.append(f"[exit code {result.return_code}]")
    if result.shell_ended:
        notes.append("[the shell has ended; the next command starts a new one]")
    return "\n".join(filter(None, (result.output.rstrip("\n"), *notes)))
