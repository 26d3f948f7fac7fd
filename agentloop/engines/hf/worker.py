"""`Worker`: the thread of the `hf` engine, which batches continuously over slots, one packed forward pass per step."""

from __future__ import annotations

import collections
import logging
import queue
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentloop.engines.base import FinishReason, Generation, SamplingParams
from agentloop.engines.hf.attention import DecodeRows, PromptChunks, SlotStep
from agentloop.engines.hf.cache import SlotCache
from agentloop.engines.hf.images import ImageFeatures, Shown, VisionStep
from agentloop.engines.hf.model import forward
from agentloop.engines.hf.sampler import sample, uniform
from agentloop.engines.hf.slots import SlotTable
from agentloop.engines.stop_strings import StopStrings
from agentloop.errors import EngineError
from agentloop.grammars.compiler import GrammarState
from agentloop.grammars.logits import forbid_
from agentloop.types.routed_experts import RoutedExperts
from agentloop.vision.loading import tower_of

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Request:
    """One turn; only the worker thread may use it after `submit`."""

    trajectory_id: str
    prompt: NDArray[np.int32]
    params: SamplingParams
    stops: StopStrings | None
    grammar: GrammarState | None
    seed: int
    limit: int
    """Number of tokens in the slot at which the turn is cut."""
    done: Callable[[Generation | BaseException], None]
    tell: Callable[[int], None] | None = None
    """Called with each token as it is sampled."""
    shown: Shown | None = None
    """None for a prompt without images."""
    row: int = -1
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (index of a sampled token, policy version that samples from there on)."""
    aborted: bool = False


Command = Callable[[], None]


class Worker:
    """Owns the model and the cache. All methods except `start`, `post` and `join` run in the worker thread."""

    def __init__(self, model: Any, cache: SlotCache, *, max_batch_tokens: int) -> None:
        self.model = model
        self._cache = cache
        self._table = SlotTable(cache)
        self._images = None if tower_of(model) is None else ImageFeatures(model)
        self._max_batch_tokens = max_batch_tokens
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._waiting: collections.deque[Request] = collections.deque()
        slots = cache.slots
        self._requests: list[Request | None] = [None] * slots
        self._active = np.zeros(slots, bool)
        self._spoiled: list[int] = []
        """Slots of a failed step. The next step clears them, because a CUDA error that stays fails that, too."""
        self._prompt_len = np.zeros(slots, np.int64)
        self._limit = np.zeros(slots, np.int64)
        self._seed = np.zeros(slots, np.uint64)
        self._temperature = np.ones(slots, np.float32)
        self._top_p = np.ones(slots, np.float32)
        self._top_k = np.zeros(slots, np.int64)
        self._stops = np.full((slots, 1), -1, np.int64)
        self._rope_shift = np.zeros(slots, np.int64)
        self.version = 0
        self.paused = False
        self._asleep = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="agentloop-hf", daemon=True)

    # Called from any thread.

    def start(self) -> None:
        self._thread.start()

    def post(self, command: Command) -> None:
        """Run `command` in the worker thread, between two steps."""
        self._inbox.put(command)

    def join(self) -> None:
        self._thread.join()

    # Commands.

    def submit(self, request: Request) -> None:
        if request.shown is not None:
            assert self._images is not None
            request.prompt = self._images.named(request.prompt, request.shown.images)
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """End the turn with the tokens sampled so far."""
        if request.row >= 0:
            self._finish(request.row, FinishReason.ABORT)
        elif request in self._waiting:
            self._waiting.remove(request)
            request.done(_generation(request, np.zeros(0, np.int32), np.zeros(0, np.float32), FinishReason.ABORT))

    def release(self, trajectory_id: str) -> None:
        self._table.release(trajectory_id)

    def weights_changed(self, version: int) -> None:
        """Record new weights. Running turns keep their keys and values; later turns recompute them."""
        self.version = version
        self._table.outdate()
        if self._images is not None:
            self._images.forget_features()
        for row in np.flatnonzero(self._active):
            request = self._requests[row]
            assert request is not None
            sampled = int(self._cache.tok_len[row] - self._prompt_len[row])
            request.marks.append((sampled, version))

    def sleep(self) -> None:
        """Move the weights to the host, and drop keys and values, which running turns recompute after `wake`."""
        self._asleep = True
        self._table.outdate()
        self._cache.drop()
        if self._images is not None:
            self._images.forget_features()
        self.model.to("cpu")
        if self._cache.kv.is_cuda:
            torch.cuda.empty_cache()

    def wake(self) -> None:
        if not self._asleep:
            return
        self.model.to(self._cache.kv.device)
        for row in np.flatnonzero(self._active):
            self._cache.reserve(int(row), int(self._cache.tok_len[row]))
        self._asleep = False

    def stop(self) -> None:
        """Abort everything and end the thread."""
        for request in [*(r for r in self._requests if r is not None), *self._waiting]:
            self.abort(request)
        self._stopping = True

    # The thread.

    def _run(self) -> None:
        with torch.inference_mode():
            while not self._stopping:
                busy = not (self.paused or self._asleep) and (self._waiting or self._active.any())
                self._drain(block=not busy)
                if not busy or self.paused or self._asleep or self._stopping:
                    continue
                try:
                    self._step()
                except Exception as error:  # a failed step fails its turns, but not the thread
                    self._fail_all(error)

    def _drain(self, block: bool) -> None:
        try:
            while True:
                self._inbox.get(block=block)()
                block = False
        except queue.Empty:
            pass

    def _fail_all(self, error: Exception) -> None:
        reason = f"the hf engine failed in a step: {type(error).__name__}: {error}"
        _log.error(reason, exc_info=error)
        for request in [*(r for r in self._requests if r is not None), *self._waiting]:
            if request.row >= 0:
                self._spoiled.append(request.row)
                self._leave(request.row)
            request.done(EngineError(reason))
        self._waiting.clear()

    def _step(self) -> None:
        while self._spoiled:
            self._table.forget(self._spoiled[-1])
            self._spoiled.pop()
        self._admit()
        cache = self._cache
        missing = np.where(self._active, cache.tok_len - cache.kv_len, 0)
        decode = np.flatnonzero(missing == 1)
        prompts = np.flatnonzero(missing > 1)
        if len(decode) + len(prompts) == 0:
            return
        # Long prompts are computed in chunks, so that no step delays the decoding turns for long.
        budget = max(self._max_batch_tokens - len(decode), self._max_batch_tokens // 4, 1)
        before = np.minimum(np.concatenate([[0], np.cumsum(missing[prompts])[:-1]]) if len(prompts) else 0, budget)
        counts = np.minimum(missing[prompts], budget - before)
        prompts, counts = prompts[counts > 0], counts[counts > 0]
        step, rows, counts = self._plan(decode, prompts, counts)
        ends = np.cumsum(counts)
        complete = counts == missing[rows]
        # Negative ids stand for images: their tokens have features instead of embeddings.
        tokens = np.maximum(cache.tokens[step.rows, step.positions], 0).astype(np.int64)
        ids = torch.from_numpy(tokens).to(cache.kv.device)
        keep = torch.from_numpy(ends[complete] - 1).to(cache.kv.device)
        logits = forward(self.model, ids, step, keep, self._vision_step(step, rows, counts))
        if cache.routing is not None:
            cache.routing.note(step.rows, step.positions)
        cache.kv_len[rows] += counts
        if complete.any():
            self._sample(rows[complete], logits)

    def _plan(
        self, decode: NDArray[np.int64], prompts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[SlotStep, NDArray[np.int64], NDArray[np.int64]]:
        """Return the step, its slots in packed order, and the number of tokens of each slot."""
        cache = self._cache
        order = np.argsort(-counts, kind="stable")
        prompts, counts = prompts[order], counts[order]
        rows = np.concatenate([decode, prompts])
        widths = np.concatenate([np.ones(len(decode), np.int64), counts])
        starts = cache.kv_len[rows]
        first = np.cumsum(widths) - widths
        token_rows = np.repeat(rows, widths)
        positions = np.repeat(starts - first, widths) + np.arange(int(widths.sum()))
        step = SlotStep(
            cache, token_rows, positions, DecodeRows(cache, decode, cache.kv_len[decode]) if len(decode) else None
        )
        begin, offset = 0, len(decode)
        while begin < len(prompts):
            # Group chunks of similar length, so that at most half of a group is padding.
            end = begin + int(np.count_nonzero(counts[begin:] * 2 >= counts[begin]))
            part = slice(begin, end)
            step.prompts.append(PromptChunks(cache, prompts[part], cache.kv_len[prompts[part]], counts[part], offset))
            offset += int(counts[part].sum())
            begin = end
        return step, rows, widths

    def _vision_step(self, step: SlotStep, rows: NDArray[np.int64], counts: NDArray[np.int64]) -> VisionStep | None:
        if self._images is None:
            return None
        parts = []
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            request = self._requests[row]
            parts.append((int(self._cache.kv_len[row]), count, None if request is None else request.shown))
        return self._images.step(parts, step.positions + self._rope_shift[step.rows], self._cache.kv.device)

    def _sample(self, rows: NDArray[np.int64], logits: torch.Tensor) -> None:
        cache = self._cache
        index = cache.tok_len[rows]
        cache.reserve(int(rows.max()), int(index.max()) + 1)
        logits = self._constrain(rows, logits)
        noise = uniform(self._seed[rows], index - self._prompt_len[rows])
        ids, logprobs = sample(logits, noise, self._temperature[rows], self._top_p[rows], self._top_k[rows])
        cache.tokens[rows, index] = ids
        cache.logprobs[rows, index] = logprobs
        cache.tok_len[rows] = index + 1
        self._tell(rows, ids)
        self._advance_grammars(rows, ids)
        stopped = (ids[:, None] == self._stops[rows]).any(axis=1) | self._at_stop_string(rows)
        broken = np.isnan(logprobs)
        over = stopped | broken | (index + 1 >= self._limit[rows])
        for i in np.flatnonzero(over):
            if broken[i]:
                self._break(int(rows[i]))
            else:
                self._finish(int(rows[i]), FinishReason.STOP if stopped[i] else FinishReason.LENGTH)

    def _constrain(self, rows: NDArray[np.int64], logits: torch.Tensor) -> torch.Tensor:
        """Forbid the tokens that the grammars of these rows do not allow; `logits` [rows, vocabulary]."""
        places, bits = [], []
        for place, state in self._grammars_of(rows):
            allowed = state.allowed()
            if allowed is not None:
                places.append(place)
                bits.append(allowed)
        if not places:
            return logits
        return forbid_(logits, np.array(places), torch.from_numpy(np.stack(bits)).to(logits.device))

    def _advance_grammars(self, rows: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        for place, state in self._grammars_of(rows):
            is_allowed = state.accept(int(ids[place]))
            assert is_allowed, "a token was sampled that the grammar does not allow"

    def _grammars_of(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, GrammarState]]:
        """Yield the rows with a grammar as indices into `rows`."""
        for place, row in enumerate(rows):
            request = self._requests[row]
            if request is not None and request.grammar is not None:
                yield place, request.grammar

    def _tell(self, rows: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        for row, token in zip(rows, ids, strict=True):
            request = self._requests[row]
            if request is not None and request.tell is not None:
                request.tell(int(token))

    def _at_stop_string(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows complete a stop string with their newest token."""
        cache = self._cache
        found = np.zeros(len(rows), bool)
        for place, row in enumerate(rows):
            request = self._requests[row]
            if request is not None and request.stops is not None:
                turn = cache.tokens[row, self._prompt_len[row] : cache.tok_len[row]]
                found[place] = request.stops.completed_by(turn)
        return found

    def _admit(self) -> None:
        """Assign slots to waiting turns while slots are free. If that fails, all of them still wait."""
        for request in list(self._waiting):
            if self._active.all():
                return
            row = self._table.take(request.trajectory_id, request.prompt, self._active)
            if row is not None:
                self._waiting.remove(request)
                self._enter(row, request)

    def _enter(self, row: int, request: Request) -> None:
        params = request.params
        request.row = row
        request.marks.append((0, self.version))
        self._requests[row] = request
        self._active[row] = True
        self._prompt_len[row] = len(request.prompt)
        self._limit[row] = request.limit
        self._seed[row] = request.seed
        self._temperature[row] = params.temperature
        self._top_p[row] = params.top_p
        self._top_k[row] = params.top_k
        self._rope_shift[row] = 0 if request.shown is None else request.shown.shift
        stops = params.stop_token_ids
        if len(stops) > self._stops.shape[1]:
            wider = np.full((self._cache.slots, len(stops)), -1, np.int64)
            wider[:, : self._stops.shape[1]] = self._stops
            self._stops = wider
        self._stops[row] = -1
        self._stops[row, : len(stops)] = stops

    def _leave(self, row: int) -> Request:
        request = self._requests[row]
        assert request is not None
        self._requests[row] = None
        self._active[row] = False
        request.row = -1
        return request

    def _finish(self, row: int, reason: FinishReason) -> None:
        start, end = int(self._prompt_len[row]), int(self._cache.tok_len[row])
        request = self._leave(row)
        self._table.park(row, request.trajectory_id)
        tokens, logprobs = self._cache.tokens[row, start:end], self._cache.logprobs[row, start:end]
        routed = None
        if self._cache.routing is not None:
            routed = self._cache.routing.of(row, request.params.routed_from, end)
        request.done(_generation(request, tokens, logprobs, reason, routed))

    def _break(self, row: int) -> None:
        self._table.forget(row)
        self._leave(row).done(EngineError("the model computed NaN as a log-probability: check its weights"))


def _generation(
    request: Request,
    tokens: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    reason: FinishReason,
    routed: RoutedExperts | None = None,
) -> Generation:
    versions = np.full(len(tokens), request.marks[0][1] if request.marks else 0, np.int32)
    for start, version in request.marks[1:]:
        versions[start:] = version
    return Generation(
        array("i", tokens.tobytes()),
        array("f", logprobs.tobytes()),
        array("i", versions.tobytes()),
        reason,
        routed=routed,
    )
