"""`TurnEpisode`: plays an `Env` turn by turn, as one append-only token stream.

    reset -> render -> [ sample -> parse -> run the calls, or step the environment -> render the answers ]*

`agentloop.types.limits` states the order in which limits are checked. The stream always ends with the last sampled
turn: messages after it are in `Trajectory.messages` only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import ContextExceeded, FinishReason, Generation, SamplingParams
from agentloop.envs.returned import check_parts, checked_messages, checked_step
from agentloop.episodes.overruns import within_limit
from agentloop.episodes.tool_calls import CallAnswers, answer_calls
from agentloop.errors import EnvError, EpisodeError, FailureKind, WrongTypeError, raised
from agentloop.process.offloading import off_loop
from agentloop.process.threads import DECODING
from agentloop.types.limits import Limits, StopReason
from agentloop.types.messages import Message, ParsedTurn, images_of, text_of
from agentloop.types.requests import Sampling
from agentloop.types.trajectory import SegmentKind, Trajectory

if TYPE_CHECKING:
    from agentloop.engines.base import Engine
    from agentloop.envs.base import Env
    from agentloop.rendering.base import Renderer
    from agentloop.tools.sessions import ToolSessions
    from agentloop.types.image import SeenImage

_MESSAGE_SIZE = 1500
"""Number of characters that take as long to encode as the chat template around one message."""
_LONGEST_TOKEN = 512
"""Length of the longest token in characters: vocabularies have tokens of up to 256 spaces or hyphens."""


class TurnEpisode:
    """The state of an episode while it is played."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        env: Env,
        trajectory: Trajectory,
        *,
        limits: Limits,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.limits = limits
        self.sampling = sampling
        self.env = env
        self.trajectory = trajectory
        self.seed = seed
        self.clock = asyncio.get_running_loop().time
        self.schemas: Sequence[dict[str, Any]] = ()
        self.sessions: ToolSessions | None = None
        self.images: list[Any] = []
        """Images as the environment returned them, for tools: a crop is taken from the original."""
        self.stop_strings = (*renderer.stop_strings, *sampling.stop_strings)
        self.deadline = time.monotonic() + limits.max_seconds
        self.invalid_turns = 0
        self.max_tokens = limits.most_tokens(engine.max_model_len)
        self.seconds_generating = 0.0
        self.seconds_in_tools = 0.0
        self.num_calls = 0

    async def play(self) -> StopReason:
        timeout = asyncio.timeout(self.limits.max_seconds)
        try:
            async with timeout:
                return await self._turns()
        except TimeoutError:
            if not timeout.expired():
                raise
            return StopReason.MAX_SECONDS
        except ContextExceeded as error:
            if self.trajectory.num_sampled:
                return StopReason.MAX_TOKENS
            self.trajectory.error = str(error)
            return StopReason.PROMPT_TOO_LONG
        except EpisodeError as error:
            self.trajectory.count(error.kind)
            self.trajectory.error = str(error)
            return StopReason.ENV_ERROR if isinstance(error, EnvError) else StopReason.ENGINE_ERROR

    async def _turns(self) -> StopReason:
        if not await self._open():
            return StopReason.PROMPT_TOO_LONG
        for turn in range(self.limits.max_turns):
            generation = await self._sample(turn)
            if generation.finish_reason is FinishReason.ABORT:
                return StopReason.ABORTED
            parsed = await self._parse(turn, generation)
            if generation.finish_reason is FinishReason.LENGTH and not self.env.takes_cut_turns:
                room = self.max_tokens - len(self.trajectory) + len(generation.ids)
                whole_turn = room >= self.limits.max_turn_tokens
                return StopReason.MAX_TURN_TOKENS if whole_turn else StopReason.MAX_TOKENS
            new_messages, stop_reason = await self._answer(parsed, generation.finish_reason)
            self.trajectory.messages.extend(new_messages)
            if stop_reason is not None:
                return stop_reason
            if turn + 1 < self.limits.max_turns and not await self._append(generation.ids, new_messages):
                return StopReason.MAX_TOKENS
        return StopReason.MAX_TURNS

    async def _open(self) -> bool:
        """Render the environment's first prompt; return False if it leaves no room to sample."""
        trajectory = self.trajectory
        with _EnvBoundary("reset"):
            observation = await within_limit("reset", self.env.reset(), self.limits, trajectory)
            messages = checked_messages(observation, self.env.reset)
            check_parts(self.env)
            if self.env.toolset is not None:
                self.schemas = self.env.toolset.schemas
                self.sessions = self.env.toolset.sessions(
                    trajectory.trajectory_id,
                    self.env.task,
                    self.seed,
                    self.images,
                    self.env,
                    trajectory.shared_state,
                    trajectory.messages,
                )
            prompt = await off_loop(_size(messages), self.renderer.render_prompt, messages, self.schemas)
            images = images_of(messages)
            seen = await self._see(images) if images else []
        self._show(SegmentKind.PROMPT, prompt, images, seen)
        trajectory.messages.extend(messages)
        return len(prompt) < self.max_tokens

    async def _sample(self, turn: int) -> Generation:
        started = self.clock()
        trajectory, sampling = self.trajectory, self.sampling
        params = SamplingParams(
            max_tokens=min(self.max_tokens - len(trajectory), self.limits.max_turn_tokens),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_token_ids=self.renderer.stop_token_ids,
            stop_strings=self.stop_strings,
            seed=(self.seed * 1_000_003 + turn) & 0x7FFFFFFF,
            routed_from=trajectory.num_routed,
        )
        generation = await self.engine.generate(
            trajectory.ids, params, trajectory_id=trajectory.trajectory_id, images=trajectory.images
        )
        trajectory.append(
            SegmentKind.SAMPLED, generation.ids, logprobs=generation.logprobs, versions=generation.versions
        )
        trajectory.add_routed(generation.routed)
        trajectory.turn_rewards.append(0.0)
        for name, value in generation.metrics.items():
            self._add(name, value)
        self.seconds_generating += self.clock() - started
        return generation

    async def _parse(self, turn: int, generation: Generation) -> ParsedTurn:
        parsed = await off_loop(
            len(generation.ids),
            self.renderer.parse,
            generation.ids,
            complete=generation.finish_reason is FinishReason.STOP,
            tools=self.schemas,
            call_id_prefix=f"call_{turn}_",
        )
        self.trajectory.messages.append(parsed.message())
        return parsed

    async def _answer(
        self, parsed: ParsedTurn, finish_reason: FinishReason
    ) -> tuple[Sequence[Message], StopReason | None]:
        """Return the messages that answer a turn, and the stop reason if the episode ends."""
        if not parsed.calls:
            return await self._step(parsed, finish_reason)
        started = self.clock()
        answers = await answer_calls(parsed.calls, self.sessions, self.limits, self.deadline, self.renderer)
        self.seconds_in_tools += self.clock() - started
        self.num_calls += len(parsed.calls)
        self._record(answers)
        self.invalid_turns = self.invalid_turns + 1 if answers.all_invalid else 0
        if answers.stop is not None:
            return answers.messages, answers.stop
        if self.invalid_turns >= self.limits.max_invalid_turns:
            return answers.messages, StopReason.INVALID_CALLS
        return answers.messages, None

    async def _step(
        self, parsed: ParsedTurn, finish_reason: FinishReason
    ) -> tuple[Sequence[Message], StopReason | None]:
        message: Message = {**parsed.message(), "finish_reason": finish_reason.value}  # type: ignore[typeddict-item]
        with _EnvBoundary("step"):
            answer = await within_limit("step", self.env.step(message), self.limits, self.trajectory)
            messages, reward, terminated, truncated = checked_step(answer, self.env.step)
            self.trajectory.turn_rewards[-1] += reward
        self.invalid_turns = 0
        if terminated or truncated:
            return messages, StopReason.COMPLETED if terminated else StopReason.ENV_TRUNCATED
        return messages, None

    def _record(self, answers: CallAnswers) -> None:
        for result, message in zip(answers.results, answers.messages, strict=True):
            if result.failure is not None:
                self.trajectory.count(result.failure)
            if isinstance(result.stop, StopReason) and result.stop.is_failure:
                self.trajectory.error = text_of(result.content)
            if not result.is_error:
                self._add(f"succeeded/{message.get('name', '')}", 1.0)
            self.trajectory.turn_rewards[-1] += result.reward
            for name, value in result.metrics.items():
                self._add(f"tool/{name}", value)

    def _add(self, metric: str, value: float) -> None:
        self.trajectory.metrics[metric] = self.trajectory.metrics.get(metric, 0.0) + value

    async def _append(self, sampled: Sequence[int], messages: Sequence[Message]) -> bool:
        """Append the answers to the stream; return False without appending if they leave no room to sample."""
        if len(self.trajectory) + _fewest_tokens(messages) >= self.max_tokens:
            return False
        with _EnvBoundary("render"):
            continuation = await off_loop(
                _size(messages) + len(messages) * _MESSAGE_SIZE,
                self.renderer.render_continuation,
                sampled,
                messages,
                self.schemas,
            )
            num_new = len(continuation.closing) + len(continuation.observation)
            if len(self.trajectory) + num_new >= self.max_tokens:
                return False
            images = images_of(messages)
            seen = await self._see(images) if images else []
        self.trajectory.append(SegmentKind.TEMPLATE, continuation.closing)
        self._show(SegmentKind.OBSERVATION, continuation.observation, images, seen)
        return True

    async def _see(self, images: Sequence[Any]) -> list[SeenImage]:
        vision = self.renderer.vision
        return [] if vision is None else await DECODING.run(lambda: [vision.see(image) for image in images])

    def _show(self, kind: SegmentKind, ids: Sequence[int], images: Sequence[Any], seen: list[SeenImage]) -> None:
        """Append rendered ids: the segment gets the processed images, tools get the originals."""
        start, vision = len(self.trajectory), self.renderer.vision
        placed = vision.place(ids, seen, start) if vision is not None and seen else []
        self.trajectory.append(kind, ids, images=placed)
        self.images.extend(images)

    async def close(self) -> None:
        """Release the engine's cache and the tool sessions."""
        trajectory = self.trajectory
        trajectory.metrics |= {
            "turns": trajectory.num_turns,
            "calls": self.num_calls,
            "seconds_generating": self.seconds_generating,
            "seconds_in_tools": self.seconds_in_tools,
        }
        self.engine.release(trajectory.trajectory_id)
        if self.sessions is not None:
            for _ in await self.sessions.close():
                trajectory.count(FailureKind.TOOL)


class _EnvBoundary:
    """Turn exceptions of user code into an `EnvError`, which ends its own episode only; a `WrongTypeError` passes."""

    __slots__ = ("stage",)

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, EnvError | WrongTypeError):
            raise EnvError(f"the environment's {self.stage} raised {raised(error)}") from error


def _fewest_tokens(messages: Sequence[Message]) -> int:
    """Return a lower bound on the number of tokens of messages, without rendering them."""
    return len(messages) + _size(messages) // _LONGEST_TOKEN


def _size(messages: Sequence[Message]) -> int:
    return sum(len(text_of(message.get("content", ""))) for message in messages)
