"""`RestartingEngine`: wraps an engine, replaces it if it dies or hangs, and replays known turns."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentloop.engines.base import Engine, EngineDead, FinishReason, Generation, SamplingParams
from agentloop.engines.given_up import GivenUp
from agentloop.engines.replay import TurnRecord
from agentloop.engines.stop_strings import StopFinder, up_to_stop
from agentloop.errors import EngineError, UserError, described
from agentloop.process.restart_budget import RestartBudget
from agentloop.process.threads import DECODING
from agentloop.types.grammar import Grammar
from agentloop.types.routed_experts import joined
from agentloop.weights.handle import WeightHandle
from agentloop.weights.shelf import Overwritten, SharedWeights, WeightShelf

_log = logging.getLogger(__name__)
_CLOSING_SECONDS = 30.0
"""Seconds to wait for a dead engine to close."""


@dataclass(slots=True)
class _Update:
    """One version of the weights."""

    weights: WeightHandle
    version: int
    shared: SharedWeights | None = None
    """The weights in memory that outlives this engine, once they are there."""


class RestartingEngine(Engine):
    """Creates an engine with `make`, and replaces it when it raises `EngineDead` or hangs.

    An engine hangs if no turn ends within `stall_seconds` although turns are running (None: not checked). The new
    engine gets the last weights, and is paused if the old one was. An interrupted turn continues after its known
    tokens, which keep their logprobs and versions. When `budget` is exhausted, all turns fail.

    Known turns in `turns` are replayed, and sampled turns are recorded there.

    An engine that dies asleep is replaced on `wake`, because others use its GPU until then. A `WeightShelf` keeps the
    weights of the last update, unless other processes do, so the engine can discard its own weights to sleep.
    `shelf_on_host` keeps that shelf off the GPU. `stops` finds stop strings of which each engine sampled a part.
    """

    def __init__(
        self,
        make: Callable[[], Engine],
        *,
        budget: RestartBudget | None = None,
        stall_seconds: float | None = None,
        shelf_on_host: bool = False,
        turns: TurnRecord | None = None,
        stops: StopFinder | None = None,
    ) -> None:
        self._make = make
        self._engine = make()
        self._stall_seconds = stall_seconds
        self._turns = turns
        self._stops = stops
        self._shelf = WeightShelf(on_host=shelf_on_host)
        self._current: _Update | None = None
        self._coming: _Update | None = None
        """Update that arrived while an engine starts. Older weights may be overwritten already, because the process
        that owns their shelf refills it without waiting for readers."""
        self._come = asyncio.Event()
        self._changing = asyncio.Lock()
        """Held while weights change and while an engine is replaced."""
        self._given_up = GivenUp()
        self._paused = False
        self._awake = asyncio.Event()
        self._awake.set()
        self._has_weights = True
        """Whether the engine has weights: it has not discarded them to sleep."""
        self._died_asleep = ""
        """Cause of death of an engine that died asleep; empty if it lives."""
        self._failure: str | None = None
        self._running = 0
        self._last_progress = 0.0
        self._watch: asyncio.Task[None] | None = None
        self._replacing: asyncio.Task[None] | None = None
        self._budget = budget or RestartBudget()
        self.policy_version = self._engine.policy_version
        self.max_model_len = self._engine.max_model_len

    @property
    def cache_tokens(self) -> int | None:
        return self._engine.cache_tokens

    @property
    def restart_counts(self) -> Mapping[str, int]:
        return self._budget.counts

    async def start(self) -> None:
        await self._engine.start()
        self.max_model_len = self._engine.max_model_len
        if self._stall_seconds is not None:
            self._watch = asyncio.create_task(self._find_stalls(self._stall_seconds))

    async def check_grammar(self, grammar: Grammar) -> None:
        await (await self._living()).check_grammar(grammar)

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        if self._turns is None:
            return await self._sample(prompt, params, trajectory_id, images)
        turn = self._turns.open(trajectory_id, prompt)
        generation = turn.known or await self._sample(prompt, params, trajectory_id, images)
        self._turns.close(turn, generation)
        return generation

    async def _sample(
        self, prompt: Sequence[int], params: SamplingParams, trajectory_id: str, images: Sequence[Any]
    ) -> Generation:
        sampled: Generation | None = None
        while True:
            engine = await self._living()
            rest, prefix = params, prompt
            if sampled is not None:
                rest, prefix = _rest(params, len(sampled.ids)), [*prompt, *sampled.ids]
            try:
                turn = await self._attempt(engine.generate(prefix, rest, trajectory_id=trajectory_id, images=images))
                return await self._up_to_stop(_joined(sampled, turn), params, first=sampled)
            except EngineDead as death:
                if death.sampled is not None and params.grammar is None:
                    sampled = _joined(sampled, death.sampled)
                await self._replace(engine, "died", str(death))
            if sampled is not None and (reason := _finished(sampled, params)) is not None:
                return await self._up_to_stop(replace(sampled, finish_reason=reason), params, first=sampled)

    async def _up_to_stop(self, turn: Generation, params: SamplingParams, *, first: Generation | None) -> Generation:
        """Cut a turn that two engines sampled after its first stop string, which neither of them may have seen."""
        if first is None or self._stops is None or not params.stop_strings:
            return turn
        stops = await DECODING.run(self._stops.of, params.stop_strings)
        return turn if stops is None else up_to_stop(turn, stops)

    async def _attempt(self, turn: Awaitable[Generation]) -> Generation:
        if not self._running:
            self._progress()
        self._running += 1
        try:
            return await self._given_up.unless(turn)
        finally:
            self._running -= 1
            self._progress()

    def release(self, trajectory_id: str) -> None:
        if self._turns is not None:
            self._turns.release(trajectory_id)
        self._engine.release(trajectory_id)

    async def pause(self) -> None:
        self._paused = True
        await self._change(lambda engine: engine.pause())

    async def resume(self) -> None:
        self._paused = False
        self._progress()
        await self._change(lambda engine: engine.resume())

    async def sleep(self, *, keep_weights: bool = True) -> None:
        async with self._changing:
            if self._failure is not None or not self._awake.is_set():
                return
            self._awake.clear()
            self._has_weights = self._current is None
            try:
                await self._engine.sleep(keep_weights=keep_weights and self._has_weights)
            except EngineDead as death:
                await self._die_asleep(str(death))

    async def wake(self) -> None:
        async with self._changing:
            if self._failure is not None or self._awake.is_set():
                return
            engine = self._engine
            try:
                if self._died_asleep:
                    raise EngineDead(self._died_asleep)
                if not self._has_weights and self._current is not None:
                    await self._load(engine, self._current)
                await engine.wake()
            except EngineDead as death:
                await self._replace_locked(engine, "died", str(death))
            self._died_asleep, self._has_weights = "", True
            self._awake.set()
            self._progress()

    async def _die_asleep(self, cause: str) -> None:
        """Close the dead engine, so that it leaves nothing on the GPU."""
        self._died_asleep = cause
        self._given_up.set()
        await _close(self._engine)

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        update = self._coming = _Update(weights, version)
        self._come.set()
        try:
            async with self._changing:  # an engine that is starting takes the previous weights or these
                await self._take(update)
        finally:
            if self._coming is update:
                self._coming = None
        self._progress()

    async def _take(self, update: _Update) -> None:
        await self._share(update)
        engine = self._engine
        try:
            if not self._died_asleep:
                await self._load(engine, update)
        except EngineDead as death:
            self._current, self.policy_version = update, update.version
            await self._lose_locked(engine, str(death))
        if self._failure is not None:
            raise EngineError(self._failure)
        self._current, self.policy_version = update, update.version
        self._has_weights = True

    async def _load(self, engine: Engine, update: _Update) -> None:
        await engine.update_weights(await self._share(update), update.version)

    async def _share(self, update: _Update) -> SharedWeights:
        """Fetch the weights of an update once, even if several engines take them."""
        if update.shared is None:
            update.shared = await asyncio.to_thread(update.weights.shared, self._shelf)
        return update.shared

    async def _change(self, change: Callable[[Engine], Awaitable[None]]) -> None:
        async with self._changing:
            engine = self._engine
            try:
                if not self._died_asleep:
                    await change(engine)
            except EngineDead as death:
                await self._lose_locked(engine, str(death))  # the new engine gets the changed state

    async def _lose_locked(self, engine: Engine, cause: str) -> None:
        if self._awake.is_set():
            await self._replace_locked(engine, "died", cause)
        else:
            await self._die_asleep(cause)

    async def _living(self) -> Engine:
        if self._died_asleep:
            await self._awake.wait()
        await self._replaced()
        if self._failure is not None:
            raise EngineError(self._failure)
        return self._engine

    async def _replace(self, engine: Engine, kind: str, cause: str) -> None:
        """Replace an engine once for all turns that noticed its death; finish even if these turns are cancelled."""
        if engine is not self._engine or self._failure is not None:
            return
        if self._replacing is None:
            self._given_up.set()
            self._replacing = asyncio.create_task(self._replace_alone(engine, kind, cause))
        await self._replaced()

    async def _replaced(self) -> None:
        replacing = self._replacing
        if replacing is not None:
            await asyncio.wait([replacing])
            if not replacing.cancelled():  # cancelled: this engine is closed
                replacing.result()

    async def _replace_alone(self, engine: Engine, kind: str, cause: str) -> None:
        try:
            await self._awake.wait()
            async with self._changing:
                await self._replace_locked(engine, kind, cause)
        finally:
            self._replacing = None

    async def _replace_locked(self, engine: Engine, kind: str, cause: str) -> None:
        """Replace the engine, or set `_failure` if no restart is left."""
        if engine is not self._engine:
            return
        self._given_up.set()
        while self._failure is None:
            if not self._budget.spend(kind):
                self._failure = f"the engine failed too often ({self._budget}); last cause: {cause}"
                return
            _log.warning("Starting the engine again: %s.", cause)
            await _close(self._engine)
            try:
                self._engine = await self._make_ready()
            except (EngineError, UserError) as error:
                kind, cause = "start", str(error)
            except Exception as error:  # a library of the engine may raise anything
                kind, cause = "start", described(error)
            else:
                self._given_up = GivenUp()
                self._progress()
                return

    async def _make_ready(self) -> Engine:
        """Return a new engine in the state of the old one."""
        engine = self._make()
        try:
            await engine.start()
            await self._bring_up_to_date(engine)
            if self._paused:
                await engine.pause()
        except BaseException:
            await _close(engine)
            raise
        return engine

    async def _bring_up_to_date(self, engine: Engine) -> None:
        while True:
            self._come.clear()
            update = self._coming or self._current
            if update is None:
                return None
            try:
                return await self._load(engine, update)
            except Overwritten:
                await self._come.wait()  # the process that fills the shelf sends an update when it is done

    def _progress(self) -> None:
        self._last_progress = asyncio.get_running_loop().time()

    async def _find_stalls(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        while self._failure is None:
            idle = not self._running or self._paused or self._given_up.is_set() or not self._awake.is_set()
            left = seconds if idle else self._last_progress + seconds - loop.time()
            if left > 0:
                await asyncio.sleep(left)
                continue
            await self._replace(
                self._engine, "hung", f"none of {self._running} running turns ended within {seconds:g} s"
            )

    async def close(self) -> None:
        self._failure = self._failure or "the engine is closed"
        tasks = [task for task in (self._watch, self._replacing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)  # closes an engine that was starting
        await self._engine.close()


async def _close(engine: Engine) -> None:
    try:
        await asyncio.wait_for(engine.close(), _CLOSING_SECONDS)
    except Exception as error:  # a dead engine may raise anything
        _log.warning("A dead engine could not be closed: %s: %s.", type(error).__name__, error)


def _joined(first: Generation | None, second: Generation) -> Generation:
    if first is None:
        return second
    return Generation(
        first.ids + second.ids,
        first.logprobs + second.logprobs,
        first.versions + second.versions,
        second.finish_reason,
        routed=joined(first.routed, second.routed),
    )


def _rest(params: SamplingParams, num_sampled: int) -> SamplingParams:
    """Return the parameters for the rest of a turn; another seed avoids drawing the same numbers again."""
    seed = None if params.seed is None else (params.seed + 7919 * num_sampled) & 0x7FFFFFFF
    return replace(params, max_tokens=params.max_tokens - num_sampled, seed=seed)


def _finished(sampled: Generation, params: SamplingParams) -> FinishReason | None:
    """Return why a turn is complete; None if it is not."""
    ids: array[int] = sampled.ids
    if ids and ids[-1] in params.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(ids) >= params.max_tokens else None
