"""`Tool`, which a model may call, and the `ToolContext` of one trajectory. All trajectories share the `Tool`."""

from __future__ import annotations

import itertools
import math
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
from agentloop.types.messages import Content, Message, is_content, valid_strings
from agentloop.types.returned_numbers import scalar


@dataclass(slots=True, frozen=True)
class ToolResult:
    """Result of a call. A tool may also return a string, or any value that JSON can express."""

    content: Content
    """Text, or text and image parts, for the model."""
    is_error: bool = False
    """Whether the tool worked but the model's request failed, such as code that raised. `content` says why."""
    failure: FailureKind | None = None
    """Cause of a failed call: MODEL (invalid arguments, unknown tool), TOOL (raised, timed out) or ENV."""
    reward: float = 0.0
    """Added to the rewards of the turn that made the call."""
    stop: bool | StopReason = False
    """Whether to end the episode after this turn, and why. True means TOOL_STOPPED. If the `StopReason` is a failure,
    `content` becomes the error of the trajectory."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers to log, averaged over calls."""

    def __post_init__(self) -> None:
        """Raise `TypeError` for fields of a wrong type, and `ValueError` for numbers that are not finite.

        The check is in the constructor so that the traceback points into the tool. U+FFFD replaces lone surrogates.
        """
        if not is_content(self.content):
            raise TypeError(
                "the content of a ToolResult must be a string, or a list of {'type': 'text', 'text': ...} and "
                f"{{'type': 'image', 'image': a PIL.Image.Image}}, got {self.content!r:.80}"
            )
        if not isinstance(self.content, str) or not self.content.isascii():
            object.__setattr__(self, "content", valid_strings(self.content))  # the class is frozen
        if self.is_error.__class__ is not bool or self.stop.__class__ is not bool:
            self._check_flags()
        if self.reward.__class__ is float and not self.reward and self.metrics == {}:
            return  # most results; checks against abstract types are slow
        if not isinstance(self.reward, Real):
            raise TypeError(f"the reward of a ToolResult must be a number, got {self.reward!r:.80}")
        if not isinstance(self.metrics, Mapping) or not all(isinstance(one, Real) for one in self.metrics.values()):
            raise TypeError(f"the metrics of a ToolResult must map names to numbers, got {self.metrics!r:.80}")
        for name, number in {"reward": self.reward, **self.metrics}.items():
            if not math.isfinite(number):
                raise ValueError(f"{name!r} of a ToolResult must be a finite number, got {number}")

    def _check_flags(self) -> None:
        """Convert a boolean of numpy to a `bool`. Raise `TypeError` for other types."""
        for name, known, wanted in (
            ("is_error", bool, "True or False"),
            ("stop", bool | StopReason, "True, False or a StopReason"),
        ):
            flag = scalar(getattr(self, name))
            if not isinstance(flag, known):
                raise TypeError(f"{name!r} of a ToolResult must be {wanted}, got {flag!r:.80}")
            object.__setattr__(self, name, flag)


@dataclass(slots=True)
class ToolContext:
    """Context of one tool in one trajectory. `open`, `call` and `close` all get the same one."""

    trajectory_id: str
    task: Mapping[str, Any]
    """The dataset row."""
    rng: random.Random
    """Generator seeded by the trajectory: use it instead of the global one."""
    images: Sequence[Any] = ()
    """Images shown so far in the trajectory (`PIL.Image.Image`), the prompt's first."""
    messages: Sequence[Message] = ()
    """The conversation so far, which ends with the turn that made the call, to be read only. Empty in a daemon."""
    env: Any = None
    """Environment of the episode, for tools that act on it."""
    deadline: float = float("inf")
    """`time.monotonic()` at which the current call times out."""
    state: Any = None
    """Value that `Tool.open` returned."""
    shared_state: dict[str, Any] = field(default_factory=dict)
    """State that all tools of the trajectory share. Rewards read it as `trajectory.shared_state`."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline of the current call."""
        return self.deadline - time.monotonic()


class ArgumentSchema(Protocol):
    """The arguments of a tool: a JSON Schema and its validation."""

    schema: dict[str, Any]
    """JSON Schema of the arguments, an object."""

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with the types that the tool expects. Raises `ArgumentError`."""
        ...


class _DefaultName:
    def __get__(self, instance: object, owner: type) -> str:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", owner.__name__).lower()


class _DefaultDescription:
    def __get__(self, instance: object, owner: type) -> str:
        own = itertools.takewhile(lambda base: base is not Tool, owner.__mro__)
        return docstrings.split(next((base.__doc__ for base in own if base.__doc__), None))[0]


class Tool:
    """Base class of all tools.

    Subclass it and give `call` typed parameters. Then register the class in the entry point group `agentloop.tools`, or
    name it in the config.

        class Weather(Tool):
            '''Current weather of a city.'''
            timeout = 5.0
            async def call(self, ctx: ToolContext, city: Annotated[str, "City name"]) -> str: ...

    The JSON Schema comes from the signature of `call`, and arguments are validated against it before the call. Methods
    that are not `async` run in threads.
    """

    name: str = _DefaultName()  # type: ignore[assignment]
    """Name that the model calls. Default: the class name in snake_case."""
    description: str = _DefaultDescription()  # type: ignore[assignment]
    """Description for the model. Default: the docstring of the class, up to its `Args:`."""
    timeout: float = 30.0
    """Maximum seconds of one call."""
    arguments: ArgumentSchema | None = None
    """Argument schema to use instead of the signature of `call`."""
    by_name_only: bool = False
    """Whether a daemon offers the tool only if its command line names it: it reaches files or networks of the host."""
    needs_box: bool = False
    """Whether the tool works only in the box of an episode, so that no daemon can offer it."""
    limit: SharedLimit | None = None
    """Limit on the calls of all processes. The options `max_concurrency` and `calls_per_second` of a config set it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run_in_threads(cls, ("start", "shutdown", "open", "call", "close"))

    async def start(self) -> None:
        """Prepare what all trajectories share, before the first one. A second call does nothing.

        Raises `UserError` if the tool cannot work on this machine.
        """

    async def shutdown(self) -> None:
        """Release what all trajectories share, within 60 seconds. Runs even if `start` did not."""

    async def open(self, ctx: ToolContext) -> Any:
        """Create the state of one trajectory, before its first call. The result becomes `ctx.state`."""

    async def call(self, ctx: ToolContext, *args: Any, **arguments: Any) -> Any:
        """Run one call. Subclasses declare typed parameters: the arguments that the model may pass."""
        raise NotImplementedError

    async def close(self, ctx: ToolContext) -> None:
        """Release the state. Runs once after every successful `open`, even if the trajectory failed."""
