"""`RestartingEngine`: an engine that dies or hangs is started anew, and its turns go on from their token prefix."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import Engine, EngineDead, FinishReason, Generation, SamplingParams
from agentloop.engines.handing_over import Helpers
from agentloop.errors import EngineError, UserError
from agentloop.process.restart_budget import RestartBudget
from agentloop.weights.shelf import CannotMap, Overwritten, SharedWeights, WeightShelf

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
_CLOSING_SECONDS = 30.0
"""A dead engine that cannot be closed within is left to the system."""


class RestartingEngine:
    """Makes an engine with `make`, and another one when it raises `EngineDead`, or when no turn ends within
    `stall_seconds` although some are running (None: it is never taken for hung).

    The new engine gets the weights of the last update, which are kept in a `WeightShelf` (not `SharedWeights`, and with
    `copy_weights=False` no others: they never change), and is paused where the old one was. A turn goes on behind
    the tokens that are known of it: they keep their logprobs and versions. Once `budget` is spent, all turns fail.

    While an engine is replaced, `helpers` sample its turns, where there are any with room.

    An engine that dies asleep is replaced when it is to wake: until then others need its GPU. Asleep it keeps no
    weights that are kept here; `shelf_on_host` keeps them off the GPU.
    """

    def __init__(
        self,
        make: Callable[[], Engine],
        *,
        budget: RestartBudget | None = None,
        stall_seconds: float | None = None,
        copy_weights: bool = True,
        shelf_on_host: bool = False,
        helpers: Helpers | None = None,
    ) -> None:
        self._make = make
        self._engine = make()
        self._stall_seconds = stall_seconds
        self._copy_weights = copy_weights
        self._helpers = helpers
        self._shelf = WeightShelf(on_host=shelf_on_host)
        self._weights: Iterable[tuple[str, torch.Tensor]] | None = None
        self._coming: tuple[SharedWeights | list[tuple[str, torch.Tensor]], int] | None = None
        """What an engine that is being started has yet to take, where the weights of before are gone: another process
        fills its shelf anew, whoever still reads it."""
        self._come = asyncio.Event()
        self._changing = asyncio.Lock()
        """Held while weights change and while an engine is replaced."""
        self._lost = asyncio.Event()
        """The present engine is given up: whoever waits for it need not."""
        self._paused = False
        self._awake = asyncio.Event()
        self._awake.set()
        self._has_weights = True
        """Not those that it threw away to sleep."""
        self._died_asleep = ""
        """How."""
        self._failure: str | None = None
        self._running = 0
        self._last_progress = 0.0
        self._watch: asyncio.Task[None] | None = None
        self._replacing: asyncio.Task[None] | None = None
        self.budget = budget or RestartBudget()
        self.policy_version = self._engine.policy_version
        self.max_model_len = self._engine.max_model_len

    @property
    def cache_tokens(self) -> int | None:
        """Of the present engine, where it can say."""
        return getattr(self._engine, "cache_tokens", None)

    async def start(self) -> None:
        await self._engine.start()
        self.max_model_len = self._engine.max_model_len
        if self._stall_seconds is not None:
            self._watch = asyncio.create_task(self._find_stalls(self._stall_seconds))

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        sampled: Generation | None = None
        while True:
            engine = await self._sampler()
            try:
                turn = await self._attempt(engine, prompt, params, sampled, trajectory_id, images)
                return _joined(sampled, turn)
            except EngineDead as death:
                if death.sampled is not None:
                    sampled = _joined(sampled, death.sampled)
                await self._replace(engine, "died", str(death))
            if sampled is not None and (reason := _finished(sampled, params)) is not None:
                return replace(sampled, finish_reason=reason)

    async def _attempt(
        self,
        engine: Engine | Helpers,
        prompt: Sequence[int],
        params: SamplingParams,
        sampled: Generation | None,
        trajectory_id: str,
        images: Sequence[Any],
    ) -> Generation:
        if sampled is not None:
            prompt, params = [*prompt, *sampled.ids], _rest(params, len(sampled.ids))
        turn = engine.generate(prompt, params, trajectory_id=trajectory_id, images=images)
        if engine is self._helpers:
            return await turn
        if not self._running:
            self._progress()
        self._running += 1
        try:
            return await turn if self._stall_seconds is None else await _unless(self._lost, turn)
        finally:
            self._running -= 1
            self._progress()

    def release(self, trajectory_id: str) -> None:
        self._engine.release(trajectory_id)

    async def pause(self) -> None:
        self._paused = True
        await self._change(lambda engine: engine.pause())

    async def resume(self) -> None:
        self._paused = False
        self._progress()
        await self._change(lambda engine: engine.resume())

    async def sleep(self, *, keep_weights: bool = True) -> None:
        """See `Engine.sleep`."""
        async with self._changing:
            if self._failure is not None or not self._awake.is_set():
                return
            self._awake.clear()
            self._has_weights = self._weights is None
            try:
                await self._engine.sleep(keep_weights=keep_weights and self._has_weights)
            except EngineDead as death:
                await self._die_asleep(str(death))

    async def wake(self) -> None:
        """See `Engine.wake`."""
        async with self._changing:
            if self._failure is not None or self._awake.is_set():
                return
            engine = self._engine
            try:
                if self._died_asleep:
                    raise EngineDead(self._died_asleep)
                if not self._has_weights and self._weights is not None:
                    await engine.update_weights(self._weights, self.policy_version)
                await engine.wake()
            except EngineDead as death:
                await self._replace_locked(engine, "died", str(death))
            self._died_asleep, self._has_weights = "", True
            self._awake.set()
            self._progress()

    async def _die_asleep(self, cause: str) -> None:
        """Whatever is left of it must not stay on the GPU."""
        self._died_asleep = cause
        self._lost.set()
        await _close(self._engine)

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        if isinstance(weights, SharedWeights | list):
            self._coming = weights, version
            self._come.set()
        async with self._changing:  # also while they are kept: a new engine takes those of before
            kept = await asyncio.to_thread(self._keep, weights)
            engine = self._engine
            try:
                if not self._died_asleep:
                    await engine.update_weights(kept, version)
            except EngineDead as death:
                self._weights, self.policy_version = kept, version
                await self._lose_locked(engine, str(death))
            except CannotMap:  # they come again by another way
                self._coming = None
                raise
            if self._failure is not None:
                raise EngineError(self._failure)
            self._weights, self.policy_version, self._coming = kept, version, None
            self._has_weights = True
        self._progress()

    def _keep(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterable[tuple[str, torch.Tensor]]:
        if isinstance(weights, SharedWeights):
            return weights
        return self._shelf.put(weights) if self._copy_weights else list(weights)

    async def _change(self, change: Callable[[Engine], Any]) -> None:
        async with self._changing:
            engine = self._engine
            try:
                if not self._died_asleep:
                    await change(engine)
            except EngineDead as death:
                await self._lose_locked(engine, str(death))  # the next one gets the state that was asked for

    async def _lose_locked(self, engine: Engine, cause: str) -> None:
        if self._awake.is_set():
            await self._replace_locked(engine, "died", cause)
        else:
            await self._die_asleep(cause)

    @property
    def is_being_replaced(self) -> bool:
        """Turns wait, or are sampled by helpers."""
        return self._replacing is not None

    async def _sampler(self) -> Engine | Helpers:
        if self._died_asleep:
            await self._awake.wait()
        await self._back_or_helped()
        if self._replacing is not None and self._helpers is not None:
            return self._helpers
        if self._failure is not None:
            raise EngineError(self._failure)
        return self._engine

    async def _replace(self, engine: Engine | Helpers, kind: str, cause: str) -> None:
        """Once for all turns that noticed, and to the end even where they are cancelled meanwhile."""
        if engine is not self._engine or self._failure is not None:
            return
        if self._replacing is None:
            self._lost.set()
            self._replacing = asyncio.create_task(self._replace_alone(engine, kind, cause))
        await self._back_or_helped()

    async def _back_or_helped(self) -> None:
        """Until there is an engine again, or a helper has room."""
        replacing = self._replacing
        if replacing is None:
            return
        if self._helpers is None:
            await asyncio.wait([replacing])
            if not replacing.cancelled():  # else this engine is closed
                replacing.result()
            return
        helped = asyncio.create_task(self._helpers.come())
        try:
            await asyncio.wait((replacing, helped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            helped.cancel()

    async def _replace_alone(self, engine: Engine, kind: str, cause: str) -> None:
        try:
            await self._awake.wait()
            async with self._changing:
                await self._replace_locked(engine, kind, cause)
        finally:
            self._replacing = None

    async def _replace_locked(self, engine: Engine, kind: str, cause: str) -> None:
        """Leaves `_failure` where no restart is left."""
        if engine is not self._engine:
            return
        self._lost.set()
        while self._failure is None:
            if not self.budget.spend(kind):
                self._failure = f"the engine was restarted too often ({self.budget}); the last time: {cause}"
                return
            _log.warning("The engine is started again: %s.", cause)
            await _close(self._engine)
            try:
                self._engine = await self._make_ready()
            except (EngineError, UserError) as error:
                kind, cause = "start", str(error)
            else:
                self._lost = asyncio.Event()
                self._progress()
                return

    async def _make_ready(self) -> Engine:
        """A new engine in the state of the old one."""
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
            weights, version = self._coming or (self._weights, self.policy_version)
            if weights is None:
                break
            try:
                await engine.update_weights(weights, version)
                break
            except Overwritten:
                await self._come.wait()  # whoever filled the shelf says so as soon as it is full

    def _progress(self) -> None:
        self._last_progress = asyncio.get_running_loop().time()

    async def _find_stalls(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        while self._failure is None:
            idle = not self._running or self._paused or self._lost.is_set() or not self._awake.is_set()
            left = seconds if idle else self._last_progress + seconds - loop.time()
            if left > 0:
                await asyncio.sleep(left)
                continue
            await self._replace(self._engine, "hung", f"{self._running} turns run and none ended in {seconds:g} s")

    async def close(self) -> None:
        self._failure = self._failure or "the engine is closed"
        tasks = [task for task in (self._watch, self._replacing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)  # an engine that was being started is closed then
        await self._engine.close()


async def _unless(lost: asyncio.Event, turn: Any) -> Generation:
    """The turn, or `EngineDead` as soon as its engine is given up."""
    attempt, given_up = asyncio.ensure_future(turn), asyncio.ensure_future(lost.wait())
    try:
        await asyncio.wait((attempt, given_up), return_when=asyncio.FIRST_COMPLETED)
        if attempt.done():
            return attempt.result()
        raise EngineDead("the engine hangs")
    finally:
        given_up.cancel()
        attempt.cancel()


async def _close(engine: Engine) -> None:
    try:
        await asyncio.wait_for(engine.close(), _CLOSING_SECONDS)
    except Exception as error:  # whatever a dead engine makes of being closed
        _log.warning("A dead engine could not be closed: %s: %s.", type(error).__name__, error)


def _joined(first: Generation | None, second: Generation) -> Generation:
    """One behind the other."""
    if first is None:
        return second
    return Generation(
        first.ids + second.ids, first.logprobs + second.logprobs, first.versions + second.versions, second.finish_reason
    )


def _rest(params: SamplingParams, num_sampled: int) -> SamplingParams:
    """For what is left of a turn. Its seed is another one: the same would draw the same numbers again."""
    seed = None if params.seed is None else (params.seed + 7919 * num_sampled) & 0x7FFFFFFF
    return replace(params, max_tokens=params.max_tokens - num_sampled, seed=seed)


def _finished(sampled: Generation, params: SamplingParams) -> FinishReason | None:
    """Whether nothing is left of a turn."""
    ids: array[int] = sampled.ids
    if ids and ids[-1] in params.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(ids) >= params.max_tokens else None
