"""`@tool`: turns a plain function into a `Tool`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, overload

from agentloop.errors import UserError, shown
from agentloop.process.threads import threaded
from agentloop.tools import docstrings
from agentloop.tools.base import Tool, ToolContext

Function = Callable[..., Any]


class FunctionTool(Tool):
    """Tool made by `@tool`. Calling it calls the function."""

    def __init__(self, function: Function, *, name: str | None, timeout: float | None, inline: bool) -> None:
        self.function = function
        self.name = name or function.__name__
        self.description = docstrings.split(function.__doc__)[0]
        self.takes_context = next(iter(inspect.signature(function).parameters), None) == "ctx"
        if timeout is not None:
            self.timeout = timeout
        self._run = (
            function if inspect.iscoroutinefunction(function) else _inline(function) if inline else threaded(function)
        )
        functools.update_wrapper(self, function)

    async def call(self, ctx: ToolContext, /, **arguments: Any) -> Any:  # type: ignore[override]
        return await (self._run(ctx, **arguments) if self.takes_context else self._run(**arguments))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@overload
def tool(function: Function, /) -> FunctionTool: ...


@overload
def tool(
    *, name: str | None = None, timeout: float | None = None, inline: bool = False
) -> Callable[[Function], FunctionTool]: ...


def tool(
    function: Function | None = None, /, *, name: str | None = None, timeout: float | None = None, inline: bool = False
) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Turn a function, sync or async, into a tool. A first parameter named `ctx` gets the `ToolContext`.

        @tool
        def add(a: int, b: int) -> str:
            '''Add two numbers.'''
            return str(a + b)

    A sync function runs in a thread. After its `timeout` (seconds) it continues there, because threads cannot be
    stopped. `inline=True` runs it on the event loop: use it for functions that take microseconds.
    """
    if function is not None:
        if not callable(function):
            raise UserError(f"tool got {shown(function)}, not a function. Write `@tool`, or `@tool(name=...)`.")
        return FunctionTool(function, name=name, timeout=timeout, inline=inline)
    return functools.partial(FunctionTool, name=name, timeout=timeout, inline=inline)


def _inline(function: Function) -> Function:
    async def call(*args: Any, **arguments: Any) -> Any:
        return function(*args, **arguments)

    return call
