"""`CodeInterpreter`: the model writes Python, a sandbox runs it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any

from agentloop import sandboxes
from agentloop.errors import UserError
from agentloop.sandboxes import Execution, ExecutionResult
from agentloop.tools.base import Tool, ToolContext, ToolResult

_FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*\n(?P<code>.*?)\n?```\s*", re.DOTALL | re.IGNORECASE)
_QUEUE_SECONDS = 600.0
"""What a call may take on top of the code's time, which the sandbox itself bounds: many episodes share few slots."""


class CodeInterpreter(Tool):
    """Run Python code in a fresh process and return what it prints; the value of a last line that is an expression is
    printed too. Nothing is kept between calls."""

    def __init__(
        self,
        sandbox: str = "local",
        *,
        timeout: float = 10.0,
        memory_mb: int = 1024,
        max_output_bytes: int = 32768,
        max_traceback_lines: int = 12,
        **sandbox_options: Any,
    ) -> None:
        """`sandbox`: an isolation level, or "local" for the default one of this machine; `sandbox_options` are its own
        (`packages=["numpy"]`, ...). `timeout`: seconds the code may run. All trajectories share one sandbox.

        Raises `UserError` for an unknown level or option.
        """
        if sandbox.startswith(("http://", "https://")):
            raise UserError(
                f"The code interpreter cannot use the sandbox server {sandbox} yet: its client comes with `agentloop "
                "tools serve`. Use sandbox: local."
            )
        level = sandboxes.DEFAULT_LEVEL if sandbox == "local" else sandbox
        self.sandbox = sandboxes.create(level, **sandbox_options)
        self.timeout = timeout + _QUEUE_SECONDS
        # Made here, too, because it raises for limits that cannot be.
        self._execution = Execution(
            code="", timeout=timeout, memory_mb=memory_mb, output_bytes=max_output_bytes, echo=True
        )
        self._max_traceback_lines = max_traceback_lines

    async def start(self) -> None:
        await self.sandbox.start()

    async def shutdown(self) -> None:
        await self.sandbox.close()

    async def call(self, ctx: ToolContext, code: Annotated[str, "Python code to run"]) -> ToolResult:
        timeout = max(min(self._execution.timeout, ctx.seconds_left), 0.001)
        result = await self.sandbox.run(replace(self._execution, code=strip_fence(code), timeout=timeout))
        return ToolResult(
            feedback(result, timeout, self._max_traceback_lines),
            is_error=not result.ok,
            metrics={"seconds": result.seconds, "timed_out": float(result.timed_out), "ok": float(result.ok)},
        )


def strip_fence(code: str) -> str:
    """The code inside of a Markdown fence, where the whole is one."""
    match = _FENCE.fullmatch(code)
    return match["code"] if match else code


def feedback(result: ExecutionResult, timeout: float, max_traceback_lines: int) -> str:
    """What the model reads: stdout, the end of stderr, and how it ended where that is not plain."""
    parts = [result.stdout.rstrip("\n")]
    errors = result.stderr.rstrip("\n").splitlines()
    if len(errors) > max_traceback_lines:
        errors = ["...", *errors[-max_traceback_lines:]]
    parts += errors
    if result.timed_out:
        parts.append(f"[timed out after {timeout:.3g} s]")
    elif result.oom:
        parts.append("[out of memory]")
    elif result.signal is not None:
        parts.append(f"[killed by signal {result.signal}]")
    elif not result.ok and not errors:
        parts.append(f"[exit code {result.return_code}]")
    if result.output_truncated:
        parts.append("[output cut]")
    return "\n".join(part for part in parts if part) or "[no output]"
