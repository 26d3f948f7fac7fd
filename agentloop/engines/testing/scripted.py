"""`ScriptedEngine`: replays the turns of a script, for tests and for benchmarks of everything around an engine."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import Engine, FinishReason, Generation, SamplingParams
from agentloop.engines.stop_strings import StopFinder
from agentloop.errors import EngineError
from agentloop.grammars.of_model import ModelGrammars
from agentloop.process.threads import DECODING
from agentloop.registry.named_objects import load_object
from agentloop.types.grammar import Grammar

if TYPE_CHECKING:
    from agentloop.weights.handle import WeightHandle

Script = Callable[[str, int, Sequence[int], SamplingParams], Sequence[int]]
"""(trajectory_id, turn index from 0, prompt ids, sampling) -> the ids of the turn, its stop token included."""


class ScriptedEngine(Engine):
    """Returns the turns of a script instead of sampling.

    `script` is a function, its spec ('module:function'), or a sequence of turns that every trajectory replays; its last
    turn is repeated at the end. A turn is reported as cut if it does not end in a stop token or is longer than
    `max_tokens`. Text after a stop string is omitted, which needs the tokenizer of `model`. Every token has the
    log-probability `logprob`.
    """

    def __init__(
        self,
        script: Script | Sequence[Sequence[int]] | str,
        *,
        logprob: float = -0.5,
        seconds_per_turn: float = 0.0,
        max_model_len: int = 1 << 20,
        model: Any = None,
        **_model: Any,
    ) -> None:
        self._script: Script
        if isinstance(script, str):
            self._script = load_object(script, "script of the scripted engine")
        else:
            self._script = script if callable(script) else _Replay(script)
        self._stops = StopFinder(model)
        self._grammars = ModelGrammars(model)
        self._logprob = logprob
        self._seconds_per_turn = seconds_per_turn
        self._turns: dict[str, int] = {}
        self._running = asyncio.Event()
        self._running.set()
        self._awake = asyncio.Event()
        self._awake.set()
        self._closed = False
        self.max_model_len = max_model_len
        self.policy_version = 0

    async def start(self) -> None:
        """Do nothing, because there is no model."""

    async def check_grammar(self, grammar: Grammar) -> None:
        await DECODING.run(self._grammars.check, grammar)

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        if self._closed:
            raise EngineError("the scripted engine is closed")
        turn = self._turns.get(trajectory_id, 0)
        self._turns[trajectory_id] = turn + 1
        if self._seconds_per_turn:
            await asyncio.sleep(self._seconds_per_turn)
        while not (self._running.is_set() and self._awake.is_set()):
            await self._awake.wait()
            await self._running.wait()
        ids = array("i", self._script(trajectory_id, turn, prompt, params))
        room = min(params.max_tokens, self.max_model_len - len(prompt))
        stops = self._stops.of(params.stop_strings)
        end = stops.end(ids) if stops is not None else None
        if end is not None:
            ids = ids[:end]
        complete = 0 < len(ids) <= room and (end is not None or ids[-1] in params.stop_token_ids)
        ids = ids[:room]
        if params.grammar is not None:
            self._check_form(ids, params.grammar)
        return Generation(
            ids,
            array("f", [self._logprob]) * len(ids),
            array("i", [self.policy_version]) * len(ids),
            FinishReason.STOP if complete else FinishReason.LENGTH,
        )

    def _check_form(self, ids: Sequence[int], grammar: Grammar) -> None:
        state = self._grammars.begin(grammar)
        for place, token in enumerate(ids):
            if not state.accept(token):
                raise EngineError(f"the grammar of the turn does not allow the token {token} at place {place}")

    def release(self, trajectory_id: str) -> None:
        self._turns.pop(trajectory_id, None)

    async def pause(self) -> None:
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    async def sleep(self, *, keep_weights: bool = True) -> None:
        self._awake.clear()

    async def wake(self) -> None:
        self._awake.set()

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        """Set only the version, because a script has no weights."""
        self.policy_version = version

    async def close(self) -> None:
        self._closed = True
        self._running.set()
        self._awake.set()


class _Replay:
    """The same turns for every trajectory."""

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        assert turns, "a script needs at least one turn"
        self._turns = [array("i", turn) for turn in turns]

    def __call__(self, trajectory_id: str, turn: int, prompt: Sequence[int], params: SamplingParams) -> Sequence[int]:
        return self._turns[min(turn, len(self._turns) - 1)]
