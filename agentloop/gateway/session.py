"""`Session`: one episode of an agent program, from its first call of the model to its last."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal

from agentloop.engines.base import ContextExceeded, FinishReason, Generation, SamplingParams
from agentloop.engines.episodes import current_episode, playing
from agentloop.engines.token_listeners import listening
from agentloop.errors import EngineError, FailureKind, UserError
from agentloop.gateway.conversations import Conversations, Images, Place
from agentloop.gateway.turns.completions import Completion, message_of
from agentloop.gateway.turns.deltas import read_stream
from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.memory import Kept, Memory
from agentloop.gateway.turns.messages import conversation_keys
from agentloop.gateway.turns.requests import ModelRequest
from agentloop.gateway.turns.stops import without_stop
from agentloop.process.log_once import warn_once
from agentloop.process.offloading import off_loop
from agentloop.process.threads import DECODING
from agentloop.types.grammar import Grammar
from agentloop.types.limits import Limits, StopReason
from agentloop.types.messages import InvalidCall, Message, ParsedTurn, UnfinishedCall, images_of, text_of
from agentloop.types.requests import Sampling
from agentloop.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentloop.engines.base import Engine
    from agentloop.rendering.base import Progress, Renderer

Chooser = Literal["run", "client"]
StreamListener = Callable[[Sequence[int], str], None]
"""Gets new ids of a turn, and the prefix of the ids of its calls."""

_MAX_ANSWERS = 16
"""Number of answers to keep for clients that request them again."""


class Session:
    """Serves the calls of one episode and keeps their token streams. It belongs to one event loop.

    With `chosen_by="run"`, temperature, top_p and top_k of `sampling` override those of requests, and each call has a
    separate seed. The learner scores tokens at one temperature, and episodes of a group that all request `seed=0`
    would be equal. With "client" the settings of `sampling` are defaults. If the turns are trained, requests that
    change them are refused.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        *,
        limits: Limits,
        sampling: Sampling,
        chosen_by: Chooser = "run",
        trajectory_id: str = "",
        seed: int = 0,
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._limits = limits
        self._sampling = sampling
        self._chosen_by = chosen_by
        self._seed = seed
        self._conversations = Conversations(trajectory_id)
        self._episode = current_episode()
        self._max_tokens = limits.most_tokens(engine.max_model_len)
        self._num_requests: Counter[bytes] = Counter()
        self._calls: set[asyncio.Task[Completion]] = set()
        self._answers: OrderedDict[tuple[bytes, int], Completion] = OrderedDict()
        self._invalid_in_a_row = 0
        self._closed = False
        self.memory = Memory()
        """Earlier answers and calls that later requests may refer to."""
        self.refused: StopReason | None = None
        """Limit of the first refused call, or a failure of the engine."""
        self.error: str | None = None
        """Error message of the engine, or the reason why a first prompt was refused."""
        self.failures: Counter[FailureKind] = Counter()
        self.num_turns = 0
        self.num_calls = 0
        """Tool calls, malformed ones included."""
        self.seconds_generating = 0.0
        self.metrics: dict[str, float] = {}
        """Sums of the figures that the engine reports."""

    async def complete(
        self, request: ModelRequest, index: int = 0, *, hear: StreamListener | None = None
    ) -> Completion:
        """Sample the turn that follows a conversation, or turn `index` of several.

        `hear` gets the ids while they are sampled, if the engine streams them. Cancelling has no side effects. A client
        that reports a lost answer gets the same turn again if it is one of the last. Raises `ApiError`.
        """
        answered = self._answers.get((request.sent, index)) if request.is_retry else None
        if answered is None:
            answered = await self._tracked(self._complete(request, index, hear))
        if request.kept_as is not None:
            conversation = [*request.messages[request.num_unkept :], message_of(answered.parsed)]
            self.memory.conversations[request.kept_as] = Kept(conversation, request.options)
        return answered

    async def complete_all(self, request: ModelRequest) -> list[Completion]:
        """Sample the `n` turns of a request. The first failure cancels the others and raises its `ApiError`."""
        if request.n == 1:
            return [await self.complete(request)]
        turns = [asyncio.ensure_future(self.complete(request, index)) for index in range(request.n)]
        try:
            return await asyncio.gather(*turns)
        except BaseException:
            for turn in turns:
                turn.cancel()
            await asyncio.wait(turns)
            raise

    async def count_tokens(self, request: ModelRequest) -> int:
        """Return the number of prompt tokens of a request. Raises `ApiError`."""
        parent = self._conversations.find(request)
        place = Place(request, parent, "", appends=False)
        if parent is None or not await self._render_new(place):
            place = Place(request, None, "", appends=False)
            await self._fill_whole(place)
        return len(place.prompt)

    async def close(self) -> None:
        """End the episode: cancel running calls and refuse later ones. Repeated calls have no effect."""
        self._closed = True
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        for name in self._conversations.names:
            self._engine.release(name)

    def trajectories(self) -> list[Trajectory]:
        """Return the token streams, the one of the last turn first. A token is sampled in only one of them."""
        return self._conversations.as_trajectories()

    async def _tracked(self, work: Coroutine[Any, Any, Completion]) -> Completion:
        task = asyncio.ensure_future(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and not (caller and caller.cancelling()):
                raise ApiError(410, "This episode is over.", code="episode_over") from None
            raise

    def _check(self) -> None:
        """Check the limits that do not need the prompt, in the order of `agentloop.types.limits`."""
        if self._closed:
            raise ApiError(410, "This episode is over.", code="episode_over")
        if self.num_turns >= self._limits.max_turns:
            raise self._refusal(
                StopReason.MAX_TURNS, f"The episode has reached its limit of {self._limits.max_turns} turns."
            )
        if self._invalid_in_a_row >= self._limits.max_invalid_turns:
            raise self._refusal(
                StopReason.INVALID_CALLS, f"{self._invalid_in_a_row} turns in a row had only malformed tool calls."
            )

    def _check_sampling(self, request: ModelRequest) -> None:
        """Refuse a sampling distribution that the learner does not score, if it trains on the turn."""
        if self._chosen_by != "client" or not self._sampling.is_trained:
            return
        for name in ("temperature", "top_p", "top_k"):
            wanted, ours = getattr(request, name), getattr(self._sampling, name)
            if wanted is not None and wanted != ours:
                raise ApiError(
                    400,
                    f"{name} is {wanted}, but this episode is trained and the learner scores its tokens at {name} "
                    f"{ours}. Leave it out or set sampling.{name} of the run, or set `sampling: run` in env.options to "
                    "ignore it.",
                    code="unsupported",
                    param=name,
                )

    def _refusal(self, reason: StopReason, message: str, *, code: str | None = None, status: int = 400) -> ApiError:
        if self.refused is None or reason.is_failure:
            self.refused = reason
        if reason is StopReason.PROMPT_TOO_LONG:
            self.error = message.removesuffix(".")
        return ApiError(status, message, code=code or str(reason))

    async def _complete(self, request: ModelRequest, index: int, hear: StreamListener | None) -> Completion:
        self._check()  # without an await before the count: requests that arrive together share the limit
        self._check_sampling(request)
        self.num_turns += 1
        tag = self._tag(request)
        place = self._conversations.open(request)
        try:
            if place.parent is None or not await self._render_new(place):
                place = await self._render_whole(place)
            self._check_room(place)
            place.grammar = await self._grammar(request)
            heard = _Heard(hear, _call_id_prefix(tag))
            with listening(heard.hear if hear is not None else None):
                generation = await self._sample(place, tag, index)
            heard.check(generation)
            return await self._finish(place, generation, tag, index)
        except BaseException:
            self.num_turns -= 1
            self._conversations.abandon(place)
            raise

    async def _render_new(self, place: Place) -> bool:
        """Render the messages after the parent turn; return False if the template cannot append them."""
        assert place.parent is not None
        messages, tools = place.new_messages, place.request.tools
        render = self._renderer.render_continuation
        try:
            continuation = await off_loop(_size(messages), render, place.parent.ids, messages, tools)
        except UserError:
            return False
        place.extend(continuation, await self._images(messages))
        return True

    async def _render_whole(self, place: Place) -> Place:
        """Render the whole conversation in a new stream."""
        if place.parent is not None:
            self._conversations.abandon(place)
            place = self._conversations.open(place.request, new_stream=True)
        await self._fill_whole(place)
        return place

    async def _fill_whole(self, place: Place) -> None:
        messages, tools = place.request.messages, place.request.tools
        try:
            prompt = await off_loop(_size(messages), self._renderer.render_prompt, messages, tools)
            place.begin(prompt, await self._images(messages))
        except UserError as error:
            raise ApiError(400, str(error), param="messages") from error

    async def _images(self, messages: Sequence[Message]) -> Images:
        """Prepare the images of messages for the model; return the function that places them."""
        images, vision = images_of(messages), self._renderer.vision
        if not images or vision is None:
            return lambda _ids, _start: ()
        seen = await DECODING.run(lambda: [vision.see(image) for image in images])
        return lambda ids, start: vision.place(ids, seen, start)

    async def _grammar(self, request: ModelRequest) -> Grammar | None:
        """Return the grammar of a turn. Raises `ApiError` if turns cannot have the form that the client requests."""
        form = request.form
        if form is None:
            return None
        try:
            grammar = self._renderer.turn_grammar(form, request.tools)
            await self._engine.check_grammar(grammar)
        except UserError as error:
            if form.is_optional:
                warn_once(f"The arguments of strict tools are not constrained. {error}")
                return None
            param = "tool_choice" if form.answer is None else "response_format"
            raise ApiError(400, str(error), code="unsupported", param=param) from error
        return grammar

    def _check_room(self, place: Place) -> None:
        if len(place.prompt) >= self._max_tokens:
            raise self._refusal(
                StopReason.MAX_TOKENS if self._conversations.streams else StopReason.PROMPT_TOO_LONG,
                f"The prompt has {len(place.prompt)} tokens; the episode's limit for prompt and answer is "
                f"{self._max_tokens}.",
                code="context_length_exceeded",
            )

    def _tag(self, request: ModelRequest) -> bytes:
        """Return the name of a turn: equal in every run, and different for a repeated request."""
        key = request.keys[-1]
        self._num_requests[key] += 1
        return hashlib.blake2b(key + f"{self._seed}-{self._num_requests[key]}".encode(), digest_size=8).digest()

    async def _sample(self, place: Place, tag: bytes, index: int) -> Generation:
        started = time.perf_counter()
        try:
            with playing(self._episode):  # an HTTP request has another context
                generation = await self._engine.generate(
                    place.prompt, self._params(place, tag, index), trajectory_id=place.name, images=place.images
                )
        except ContextExceeded as error:
            reason = StopReason.MAX_TOKENS if self._conversations.streams else StopReason.PROMPT_TOO_LONG
            raise self._refusal(reason, str(error), code="context_length_exceeded") from error
        except (EngineError, UserError) as error:
            self.failures[FailureKind.ENGINE] += 1
            self.error = str(error)
            raise self._refusal(StopReason.ENGINE_ERROR, f"The engine failed: {error}.", status=500) from error
        finally:
            self.seconds_generating += time.perf_counter() - started
        if generation.finish_reason is FinishReason.ABORT:
            raise self._refusal(StopReason.ABORTED, "The engine was stopped.", status=503)
        for name, value in generation.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value
        return generation

    def _params(self, place: Place, tag: bytes, index: int) -> SamplingParams:
        request, sampling = place.request, self._sampling
        room = min(self._max_tokens - len(place.prompt), self._limits.max_turn_tokens)
        temperature, top_p, top_k, seed = sampling.temperature, sampling.top_p, sampling.top_k, None
        if self._chosen_by == "client":
            temperature = temperature if request.temperature is None else request.temperature
            top_p = top_p if request.top_p is None else request.top_p
            top_k = top_k if request.top_k is None else request.top_k
            seed = None if request.seed is None else request.seed + index
        return SamplingParams(
            max_tokens=min(room, request.max_tokens or room),
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            stop_token_ids=self._renderer.stop_token_ids,
            stop_strings=(*self._renderer.stop_strings, *sampling.stop_strings, *request.stop),
            grammar=place.grammar,
            seed=(int.from_bytes(tag, "big") if seed is None else seed) & 0x7FFFFFFF,
            routed_from=place.parent.stream.num_routed if place.parent is not None and place.appends else 0,
        )

    async def _finish(self, place: Place, generation: Generation, tag: bytes, index: int) -> Completion:
        request = place.request
        parsed, stop = await off_loop(len(generation.ids), self._read, request, generation, tag)
        self._count(parsed, is_cut=generation.finish_reason is FinishReason.LENGTH)
        completion = Completion(request, place.prompt, generation, parsed, tag.hex(), stop)
        # No await below: the turn is in its stream before its client can continue it.
        answer = message_of(parsed)
        (key,) = conversation_keys([answer], request.keys[-1])
        self._conversations.add(place, generation, answer, key)
        self.memory.add(completion.calls)
        self._answers[request.sent, index] = completion
        if len(self._answers) > _MAX_ANSWERS:
            self._answers.popitem(last=False)
        return completion

    def _read(self, request: ModelRequest, generation: Generation, tag: bytes) -> tuple[ParsedTurn, str | None]:
        has_ended, prefix = generation.finish_reason is FinishReason.STOP, _call_id_prefix(tag)
        if request.stream:
            progress: Progress = "complete" if has_ended else "cut"
            parsed = read_stream(self._renderer, request, generation.ids, progress, prefix)
        else:
            parsed = self._renderer.parse(
                generation.ids,
                complete=has_ended and request.reads_calls,
                tools=request.tools,
                call_id_prefix=prefix,
            )
        return without_stop(parsed, request.stop)

    def _count(self, parsed: ParsedTurn, *, is_cut: bool) -> None:
        calls = parsed.calls
        if is_cut and calls and isinstance(calls[-1], UnfinishedCall):
            calls = calls[:-1]  # the limit ended it, not the model
        invalid = sum(isinstance(call, InvalidCall) for call in calls)
        self.failures[FailureKind.MODEL] += invalid
        self.num_calls += len(calls)
        if calls and invalid == len(calls):
            self._invalid_in_a_row += 1
        else:
            self._invalid_in_a_row = 0


class _Heard:
    """Checks that the streamed ids of a turn match its final ids."""

    def __init__(self, hear: StreamListener | None, call_id_prefix: str) -> None:
        self._hear = hear
        self._call_id_prefix = call_id_prefix
        self._ids: list[int] = []

    def hear(self, ids: Sequence[int]) -> None:
        assert self._hear is not None
        self._ids.extend(ids)
        self._hear(ids, self._call_id_prefix)

    def check(self, generation: Generation) -> None:
        """Raise `ApiError` if the engine died during the turn and its successor sampled other tokens."""
        both = zip(self._ids, generation.ids, strict=False)
        if any(heard != sampled for heard, sampled in both):
            raise ApiError(
                503,
                "The engine was lost while it streamed this turn. Send the request again.",
                code="engine_restarted",
                retry=True,
            )


def _size(messages: Sequence[Message]) -> int:
    return sum(len(text_of(message["content"])) for message in messages)


def _call_id_prefix(tag: bytes) -> str:
    return f"call_{tag.hex()[:12]}_"
