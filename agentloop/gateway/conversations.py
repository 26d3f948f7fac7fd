"""`Conversations`: the token streams of one episode, and which of them a request goes on with.

A request brings a whole history. Where that begins with a turn that was sampled here, the stream up to that turn goes
on as it is, id for id, and only what is new behind it is rendered. Two requests that go on from one turn are two
streams: the second is a branch, which begins with what it shares with the first as context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import Generation
from agentloop.gateway.requests import ChatRequest
from agentloop.rendering.base import Continuation
from agentloop.types.messages import Message
from agentloop.types.trajectory import SegmentKind, Trajectory

if TYPE_CHECKING:
    from agentloop.types.image import PlacedImage

Images = Callable[[Sequence[int], int], "Sequence[PlacedImage]"]
"""(ids, where they begin in the stream) -> the new pictures, placed in them."""


@dataclass(slots=True, eq=False)
class Turn:
    """A sampled turn: where its stream stands behind it."""

    stream: Trajectory
    name: str
    """Under which the engine knows the stream."""
    start: int
    end: int
    """Its ids are `stream.ids[start:end]`."""
    num_messages: int
    """Of its conversation, this turn included."""
    reasoning: str
    parent: Turn | None
    continued: bool = False
    """Some request goes on from here in the same stream; all others branch off."""

    @property
    def ids(self) -> Sequence[int]:
        return self.stream.ids[self.start : self.end]


@dataclass(slots=True, eq=False)
class Place:
    """Where the turn of a request will stand."""

    request: ChatRequest
    parent: Turn | None
    name: str
    """For the engine."""
    appends: bool
    """To the stream of `parent`; else it begins a stream."""
    prompt: list[int] = field(default_factory=list)
    """All ids before the turn."""
    continuation: Continuation | None = None
    """Its end, where it goes on from `parent`."""
    new_images: Sequence[PlacedImage] = ()

    @property
    def images(self) -> list[Any]:
        """Of the whole prompt."""
        return [*(_images_before(self.parent) if self.parent else ()), *self.new_images]

    def begin(self, prompt: list[int], images: Images) -> None:
        """Fill in a whole prompt."""
        self.prompt = prompt
        self.new_images = images(prompt, 0)

    def go_on(self, continuation: Continuation, images: Images) -> None:
        """Fill in what follows the parent turn."""
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
        """In the order in which their first turns were sampled."""
        self.names: list[str] = []
        """All that the engine has seen."""

    def open(self, request: ChatRequest, *, anew: bool = False) -> Place:
        """The place of a request, which must be given back with `add` or `abandon`. `anew`: begin a stream, whatever
        is known of the conversation."""
        parent = None if anew else self._find(request)
        if parent is not None and not parent.continued:
            parent.continued = True
            return Place(request, parent, parent.name, appends=True)
        name = f"{self._id}.{len(self.names)}" if self.names else self._id
        self.names.append(name)
        return Place(request, parent, name, appends=False)

    def abandon(self, place: Place) -> None:
        """Nothing was sampled: another request may go on in the stream."""
        if place.appends and place.parent is not None:
            place.parent.continued = place.appends = False

    def add(self, place: Place, generation: Generation, message: Message, key: bytes) -> Turn:
        """The turn was sampled; all of it joins its stream at once. `key` is that of the conversation with it."""
        parent = place.parent
        stream = parent.stream if parent is not None and place.appends else self._begin(place)
        if parent is None:
            stream.append(SegmentKind.PROMPT, place.prompt, images=place.new_images)
        else:
            assert place.continuation is not None
            stream.append(SegmentKind.TEMPLATE, place.continuation.closing)
            stream.append(SegmentKind.OBSERVATION, place.continuation.observation, images=place.new_images)
        start = len(stream)
        stream.append(SegmentKind.SAMPLED, generation.ids, logprobs=generation.logprobs, versions=generation.versions)
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
        """The stream of the last turn, then all others in their order; empty where nothing was sampled."""
        if self._last is None:
            return []
        main = self._last.stream
        trajectories = [main, *(stream for stream in self.streams if stream is not main)]
        for number, trajectory in enumerate(trajectories):
            trajectory.trajectory_id = f"{self._id}.{number}" if number else self._id
        return trajectories

    def _find(self, request: ChatRequest) -> Turn | None:
        """The longest part of the conversation that ends in a turn sampled here."""
        for key in reversed(request.keys):
            turn = self._turns.get(key)
            if turn is not None and _is_as_said(turn, request):
                return turn
        return None

    def _begin(self, place: Place) -> Trajectory:
        """A new stream; a branch has all that it shares with its parent as context."""
        stream = Trajectory()
        self.streams.append(stream)
        if (parent := place.parent) is not None:
            stream.append(SegmentKind.PROMPT, parent.stream.ids[: parent.end], images=_images_before(parent))
            stream.messages = parent.stream.messages[: parent.num_messages]
        return stream


def _images_before(turn: Turn) -> list[Any]:
    return [image for segment in turn.stream.segments if segment.end <= turn.end for image in segment.images]


def _is_as_said(turn: Turn, request: ChatRequest) -> bool:
    """Whether the client says no other thinking than was sampled; most say none."""
    at: Turn | None = turn
    while at is not None:
        said = request.messages[at.num_messages - 1].get("reasoning_content")
        if said and said != at.reasoning:
            return False
        at = at.parent
    return True
