"""`Tool`: what the model may call. One definition serves all trajectories; the `ToolContext` is its life in one."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol

from agentloop.errors import FailureKind
from agentloop.process.threads import run_in_threads
from agentloop.tools import docstrings
from agentloop.tools.rate_limits import SharedLimit
from agentloop.types.limits import StopReason
from agentloop.types.messages import Content


@dataclass(slots=True, frozen=True)
class ToolResult:
    """What a call gives back. A tool may return a string instead, or anything that JSON can say."""

    content: Content
    """Text, or text and image parts; shown to the model."""
    is_error: bool = False
    """What was asked for did not work (code that raised, a query that failed); `content` says how."""
    failure: FailureKind | None = None
    """Set where the call itself failed: MODEL (arguments refused, unknown tool), TOOL (raised, timed out), or ENV."""
    reward: float = 0.0
    """Added to the rewards of the turn that made the call."""
    stop: bool | StopReason = False
    """End the episode after this turn. Tools that are the moves of an environment say why; others end it as
    TOOL_STOPPED. With a `StopReason` that is a failure, `content` is the error of the trajectory."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the log, averaged over calls."""

    def __post_init__(self) -> None:
        """Raises `TypeError` where the tool made it, which is the place to mend."""
        if not _is_content(self.content):
            raise TypeError(
                f"the content of a ToolResult is a text, or a list of {{'type': 'text', 'text': ...}} and {{'type': "
                f"'image', 'image': ...}}, not {self.content!r:.80}"
            )
        if not isinstance(self.reward, Real):
            raise TypeError(f"the reward of a ToolResult is a number, not {self.reward!r:.80}")
        if not isinstance(self.metrics, Mapping) or not all(isinstance(one, Real) for one in self.metrics.values()):
            raise TypeError(f"the metrics of a ToolResult are numbers by name, not {self.metrics!r:.80}")


def _is_content(content: object) -> bool:
    return isinstance(content, str) or (isinstance(content, list) and all(map(_is_part, content)))


def _is_part(part: object) -> bool:
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return isinstance(part.get("text"), str) if kind == "text" else kind == "image" and "image" in part


@dataclass(slots=True)
class ToolContext:
    """What a trajectory lends to one tool. Made once per trajectory and tool, handed to open, call and close."""

    trajectory_id: str
    task: Mapping[str, Any]
    """The dataset row."""
    rng: random.Random
    """Seeded from the trajectory: use it in place of the global one."""
    images: Sequence[Any] = ()
    """Images the trajectory has shown so far (`PIL.Image.Image`), the prompt's first."""
    env: Any = None
    """The environment of the episode, for tools that are its moves."""
    deadline: float = float("inf")
    """`time.monotonic()` by which the current call must be over."""
    state: Any = None
    """What `Tool.open` returned."""

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()


class ArgumentSchema(Protocol):
    """What a tool takes."""

    schema: dict[str, Any]
    """JSON Schema of an object."""

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the tool wants them. Raises `ArgumentError`."""
        ...


class _DefaultName:
    def __get__(self, instance: object, owner: type) -> str:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", owner.__name__).lower()


class _DefaultDescription:
    def __get__(self, instance: object, owner: type) -> str:
        own = itertools.takewhile(lambda base: base is not Tool, owner.__mro__)
        return docstrings.split(next((base.__doc__ for base in own if base.__doc__), None))[0]


class Tool:
    """Base of all tools: subclass, give `call` typed parameters, register through the entry point group
    `agentloop.tools` or name the class in the config.

        class Weather(Tool):
            '''Current weather of a city.'''
            timeout = 5.0
            async def call(self, ctx: ToolContext, city: Annotated[str, "City name"]) -> str: ...

    The JSON Schema comes from the signature of `call`; arguments are validated against it before the call. Methods
    that are not `async` run in threads.
    """

    name: str = _DefaultName()  # type: ignore[assignment]
    """What the model calls it. Default: the class name in snake_case."""
    description: str = _DefaultDescription()  # type: ignore[assignment]
    """Default: the docstring of the class, up to its `Args:`."""
    timeout: float = 30.0
    """Seconds one call may take."""
    arguments: ArgumentSchema | None = None
    """What it takes, where the signature of `call` does not say so."""
    limit: SharedLimit | None = None
    """Bounds its calls over all processes. The options `max_concurrency` and `calls_per_second` of a config set it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run_in_threads(cls, ("start", "shutdown", "open", "call", "close"))

    async def start(self) -> None:
        """Make ready what all trajectories share; before any of them, so that what is missing is an error at once.
        May be called again: then it does nothing. Raises `UserError` where the tool cannot work here."""

    async def shutdown(self) -> None:
        """Release what all trajectories share, whether or not `start` ran."""

    async def open(self, ctx: ToolContext) -> Any:
        """Make the state of one trajectory; before its first call. What it returns becomes `ctx.state`."""

    async def call(self, ctx: ToolContext, *args: Any, **arguments: Any) -> Any:
        """Subclasses give it typed parameters: they are what the model may pass."""
        raise NotImplementedError

    async def close(self, ctx: ToolContext) -> None:
        """Release the state; runs once for every `open` that succeeded, however the trajectory ended."""
