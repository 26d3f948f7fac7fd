"""`Conversations`: the token streams of one episode, and the stream that a request continues.

A request sends the whole history. If it begins with a turn that the gateway sampled, the stream up to that turn is
kept, id for id, and only the messages after it are rendered. If two requests continue one turn, they are two streams.
The second is a branch, which begins with the shared tokens as context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import Generation
from agentloop.gateway.turns.requests import ModelRequest
from agentloop.rendering.base import Continuation
from agentloop.types.grammar import Grammar
from agentloop.types.messages import Message
from agentloop.types.trajectory import SegmentKind, Trajectory

if TYPE_CHECKING:
    from agentloop.types.image import PlacedImage

Images = Callable[[Sequence[int], int], "Sequence[PlacedImage]"]
"""(ids, their start in the stream) -> the new images with their places in the ids."""


@dataclass(slots=True, eq=False)
class Turn:
    """A sampled turn and the end of its stream after it."""

    stream: Trajectory
    name: str
    """Trajectory id of the stream in the engine."""
    start: int
    end: int
    """End of the turn, whose ids are `stream.ids[start:end]`."""
    num_messages: int
    """Number of messages in its conversation, including this turn."""
    reasoning: str
    parent: Turn | None
    continued: bool = False
    """Whether a request continues this turn in the same stream; all others branch off."""

    @property
    def ids(self) -> Sequence[int]:
        return self.stream.ids[self.start : self.end]


@dataclass(slots=True, eq=False)
class Place:
    """The place of a turn that is not sampled yet."""

    request: ModelRequest
    parent: Turn | None
    name: str
    """Trajectory id of the stream in the engine."""
    appends: bool
    """Whether it continues the stream of `parent` instead of starting one."""
    prompt: list[int] = field(default_factory=list)
    """All ids before the turn."""
    continuation: Continuation | None = None
    """End of the prompt after `parent`; None without a parent."""
    new_images: Sequence[PlacedImage] = ()
    grammar: Grammar | None = None
    """Form of the turn; None if unconstrained."""

    @property
    def images(self) -> list[Any]:
        """Images of the whole prompt."""
        return [*(_images_before(self.parent) if self.parent else ()), *self.new_images]

    def begin(self, prompt: list[int], images: Images) -> None:
        """Set the whole prompt."""
        self.prompt = prompt
        self.new_images = images(prompt, 0)

    def extend(self, continuation: Continuation, images: Images) -> None:
        """Set the part of the prompt that follows the parent turn."""
        assert self.parent is not None
        self.continuation = continuation
        before = [*self.parent.stream.ids[: self.parent.end], *continuation.closing]
        self.prompt = [*before, *continuation.observation]
        self.new_images = images(continuation.observation, len(before))

    @property
    def new_messages(self) -> Sequence[Message]:
        return self.request.messages[self.parent.num_messages if self.parent else 0 :]


class Conversations:
    """The streams of one episode."""

    def __init__(self, trajectory_id: str) -> None:
        self._id = trajectory_id
        self._turns: dict[bytes, Turn] = {}
        self._last: Turn | None = None
        self.streams: list[Trajectory] = []
        """Streams in the order of their first sampled turns."""
        self.names: list[str] = []
        """All trajectory ids that the engine has seen."""

    def open(self, request: ModelRequest, *, new_stream: bool = False) -> Place:
        """Return a place for a request; the caller must return it with `add` or `abandon`.

        With `new_stream` it begins a stream even if the conversation is known.
        """
        parent = None if new_stream else self.find(request)
        if parent is not None and not parent.continued:
            parent.continued = True
            return Place(request, parent, parent.name, appends=True)
        name = f"{self._id}.{len(self.names)}" if self.names else self._id
        self.names.append(name)
        return Place(request, parent, name, appends=False)

    def abandon(self, place: Place) -> None:
        """Return a place without a sampled turn, so that another request may continue the stream."""
        if place.appends and place.parent is not None:
            place.parent.continued = place.appends = False

    def add(self, place: Place, generation: Generation, message: Message, key: bytes) -> Turn:
        """Append the sampled turn to its stream. `key` identifies the conversation that ends with it."""
        parent = place.parent
        stream = parent.stream if parent is not None and place.appends else self._begin(place)
        if parent is None:
            stream.append(SegmentKind.PROMPT, place.prompt, images=place.new_images)
        else:
            assert place.continuation is not None
            stream.append(SegmentKind.TEMPLATE, place.continuation.closing)
            stream.append(SegmentKind.OBSERVATION, place.continuation.observation, images=place.new_images)
        start = len(stream)
        stream.append(
            SegmentKind.SAMPLED,
            generation.ids,
            logprobs=generation.logprobs,
            versions=generation.versions,
            grammar=place.grammar,
        )
        stream.add_routed(generation.routed)
        stream.turn_rewards.append(0.0)
        stream.messages += [*place.new_messages, message]
        turn = Turn(
            stream=stream,
            name=place.name,
            start=start,
            end=len(stream),
            num_messages=len(stream.messages),
            reasoning=message.get("reasoning_content", ""),
            parent=parent,
        )
        self._turns[key] = self._last = turn
        return turn

    def as_trajectories(self) -> list[Trajectory]:
        """Return the stream of the last turn, then the others in order; empty if no turn was sampled."""
        if self._last is None:
            return []
        main = self._last.stream
        trajectories = [main, *(stream for stream in self.streams if stream is not main)]
        for number, trajectory in enumerate(trajectories):
            trajectory.trajectory_id = f"{self._id}.{number}" if number else self._id
        return trajectories

    def find(self, request: ModelRequest) -> Turn | None:
        """Return the last turn in the conversation that the gateway sampled."""
        for key in reversed(request.keys):
            turn = self._turns.get(key)
            if turn is not None and _has_same_thinking(turn, request):
                return turn
        return None

    def _begin(self, place: Place) -> Trajectory:
        """Begin a stream. A branch begins with the tokens of its parent as context."""
        stream = Trajectory()
        self.streams.append(stream)
        if (parent := place.parent) is not None:
            stream.append(SegmentKind.PROMPT, parent.stream.ids[: parent.end], images=_images_before(parent))
            stream.messages = parent.stream.messages[: parent.num_messages]
        return stream


def _images_before(turn: Turn) -> list[Any]:
    if not turn.stream.images:
        return []
    return [image for segment in turn.stream.segments if segment.end <= turn.end for image in segment.images]


def _has_same_thinking(turn: Turn, request: ModelRequest) -> bool:
    """Return whether the client sends back the sampled thinking or none at all, as most do."""
    at: Turn | None = turn
    while at is not None:
        reasoning = request.messages[at.num_messages - 1].get("reasoning_content")
        if reasoning and reasoning != at.reasoning:
            return False
        at = at.parent
    return True
