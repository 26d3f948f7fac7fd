"""`SglangEngine`: an SGLang server, started here or running elsewhere; token ids in and out."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from array import array
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import Engine, EngineDead, FinishReason, Generation, SamplingParams
from agentloop.engines.sglang.client import MEMORY, Part, SglangClient
from agentloop.engines.sglang.server import SglangServer
from agentloop.engines.sglang.weights import HalfLoaded, NotThisWay, ThroughFile, ThroughMemory, Way
from agentloop.engines.sglang.worker import LOADER
from agentloop.engines.stop_strings import StopFinder
from agentloop.errors import EngineError, UserError
from agentloop.weights.files import checkpoint_shapes
from agentloop.weights.shelf import Overwritten

if TYPE_CHECKING:
    from agentloop.weights.handle import WeightHandle

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_AGAIN_SECONDS = 0.05
"""A request may reach the server behind the order to end all of them, which is given again then."""


class SglangEngine(Engine):
    """A server of its own, or the one at `url`, which must serve `model` to nobody else: pausing ends all requests.

    `server_args` are further options of `sglang.launch_server`, such as {"attention_backend": "triton"}. Images are not
    taken: docs/sglang.md says why. Stop strings are looked for when a turn has ended: what was sampled behind one is
    thrown away. A seed holds where the server runs with {"enable_deterministic_inference": True}. Log-probabilities are
    those of the whole distribution at the temperature; at temperature 0, those at temperature 1.

    SGLang cannot say which of a turn's tokens were sampled before its weights changed. So a pause ends the running
    requests, which give what they have, and they are sent again when it goes on: each part is of one version. Their
    keys and values stay in the server's prefix cache meanwhile, for the turns that were running; turns that start later
    find nothing of older weights there (`extra_key`).

    A server of its own maps the memory that new weights are in. The one at `url` reads them from a folder below
    `weights_folder`, which both processes must see. `sleeps`: the engine will be asked to `sleep`, which SGLang has to
    know at the start.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        url: str | None = None,
        dtype: str = "bfloat16",
        max_model_len: int | None = None,
        gpu_memory_utilization: float = 0.85,
        tensor_parallel_size: int = 1,
        seed: int | None = None,
        max_num_seqs: int = 256,
        server_args: dict[str, Any] | None = None,
        command: Sequence[str] | None = None,
        start_seconds: float = 900.0,
        sleeps: bool = False,
        weights_folder: str | Path = "/dev/shm",
    ) -> None:
        self._model = os.fspath(model)
        arguments = {
            "model_path": self._model,
            "skip_tokenizer_init": True,
            "dtype": dtype,
            "context_length": max_model_len,
            "mem_fraction_static": gpu_memory_utilization,
            "tp_size": tensor_parallel_size,
            "random_seed": seed if seed is not None else 0,
            "max_running_requests": max_num_seqs,
            "custom_weight_loader": LOADER,
            "enable_memory_saver": sleeps,
            "enable_weights_cpu_backup": sleeps,
            "log_level": "warning",
            **(server_args or {}),
        }
        self._server = SglangServer(arguments, command) if url is None else None
        self._client = SglangClient(url or "")
        self._start_seconds = start_seconds
        self._sleeps = sleeps
        self._weights_folder = Path(weights_folder)
        self._ranks = int(arguments["tp_size"])
        self._way: Way
        self.loads_by = ""
        """How the last weights got into the server: see `Way`."""
        self._stops = StopFinder(self._model)
        self._running: set[str] = set()
        """Requests that the server works on."""
        self._drained = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._away: tuple[str, ...] = ()
        """What of the server's memory is given back."""
        self._paused = False
        self._lock = asyncio.Lock()
        self._updates = 0
        self._failure: str | None = None
        self._closed = False
        self.max_model_len = max_model_len or 0
        self.policy_version = 0

    async def start(self) -> None:
        """Start the server (a minute and more), or look at the one at `url`. Raises `UserError`."""
        shapes = await asyncio.to_thread(self._look_at_model)
        self._file = ThroughFile(shapes, self._model, self._weights_folder)
        self._way = self._file if self._server is None else ThroughMemory(shapes, self._ranks)
        if self._server is not None:
            await self._launch(self._server)
        context = await self._client.check(self._model)
        if self.max_model_len > context:
            raise UserError(
                f"max_model_len={self.max_model_len} is above the context of {context} tokens that the SGLang server "
                f"at {self._client.url} has. Lower it, or start the server with --context-length."
            )
        self.max_model_len = self.max_model_len or context

    def _look_at_model(self) -> dict[str, tuple[int, ...]] | None:
        folder = Path(self._model)
        if not folder.is_dir() and folder.is_absolute():
            raise UserError(f"There is no model folder {self._model!r}.")
        return checkpoint_shapes(folder) if folder.is_dir() else None

    async def _launch(self, server: SglangServer) -> None:
        await server.start()
        await self._client.close()
        self._client = SglangClient(server.url)
        try:
            async with asyncio.timeout(self._start_seconds):
                while not await self._client.is_up():
                    server.check()
                    await asyncio.sleep(_POLL_SECONDS)
        except (EngineDead, TimeoutError) as error:
            reason = str(error) or f"not ready after {self._start_seconds:g} s: {server.last_words()}"
            await self.close()
            raise UserError(f"SGLang cannot start with the model {self._model!r}: {reason}") from error

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        self._check_alive()
        if images:
            raise EngineError("the sglang engine takes no images")
        tokens = list(prompt)
        num_prompt = len(tokens)
        if not 0 < num_prompt < self.max_model_len:
            raise EngineError(f"a prompt of {num_prompt} tokens; the engine takes 1 to {self.max_model_len - 1}")
        end = min(num_prompt + params.max_tokens, self.max_model_len)
        stops = await asyncio.to_thread(self._stops.of, params.stop_strings) if params.stop_strings else None
        key = f"{self._updates}"
        logprobs, versions = array("f"), array("i")
        reason: FinishReason | None = None
        while reason is None:
            try:
                part, version = await self._part(tokens, params, end, key)
            except EngineDead as death:
                sampled = Generation(array("i", tokens[num_prompt:]), logprobs, versions, FinishReason.ABORT)
                raise EngineDead(str(death), sampled) from death
            tokens += part.ids
            logprobs += part.logprobs
            versions += array("i", [version]) * len(part.ids)
            reason = self._finish_reason(part, tokens, params, end)
            if stops is not None and (length := stops.end(tokens[num_prompt:])) is not None:
                reason = FinishReason.STOP
                del tokens[num_prompt + length :], logprobs[length:], versions[length:]
        return Generation(array("i", tokens[num_prompt:]), logprobs, versions, reason)

    def _finish_reason(
        self, part: Part, tokens: Sequence[int], params: SamplingParams, end: int
    ) -> FinishReason | None:
        """None where the turn goes on."""
        if part.ids and part.ids[-1] in params.stop_token_ids:
            return FinishReason.STOP
        if len(tokens) >= end:
            return FinishReason.LENGTH
        if self._closed:
            return FinishReason.ABORT
        # Paused; or the model has an end token that this turn does not ask for.
        return None

    async def _part(self, tokens: Sequence[int], params: SamplingParams, end: int, key: str) -> tuple[Part, int]:
        """Sample until the turn ends or a pause; and with which version."""
        await self._open.wait()
        self._check_alive()
        if self._failure is not None:
            raise EngineError(self._failure)
        name = uuid.uuid4().hex
        request = {
            "rid": name,
            "input_ids": tokens,
            "sampling_params": _sampling(params, end - len(tokens)),
            "return_logprob": True,
            "extra_key": key,
        }
        self._running.add(name)
        version = self.policy_version
        try:
            part = await self._client.generate(request)
        except asyncio.CancelledError:
            with suppress(EngineError):
                await asyncio.shield(self._client.abort(name))
            raise
        except EngineError:
            if self._closed:
                return Part(array("i"), array("f"), "abort"), version
            raise
        finally:
            self._running.discard(name)
            if not self._running:
                self._drained.set()
        if part.reason == "abort" and self._open.is_set() and not self._closed:
            raise EngineError(f"SGLang ended the request: {part.message}")
        return part, version

    async def pause(self) -> None:
        async with self._lock:
            await self._stop()
            self._paused = True

    async def _stop(self) -> None:
        self._check_alive()
        self._open.clear()
        await self._end_requests()

    def _go_on(self) -> None:
        if not (self._paused or self._away):
            self._open.set()

    async def _end_requests(self) -> None:
        while self._running:
            self._drained.clear()
            await self._client.abort()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), _AGAIN_SECONDS)

    async def resume(self) -> None:
        async with self._lock:
            self._paused = False
            self._go_on()

    async def sleep(self, *, keep_weights: bool = True) -> None:
        """SGLang keeps a copy of the weights in any case."""
        assert self._sleeps, "SGLang has to know at its start that it will sleep"
        async with self._lock:
            if not self._away:
                await self._stop()
                self._away = MEMORY
                await self._ask(self._client.release_memory(MEMORY), "give up the memory of the GPU")

    async def wake(self) -> None:
        async with self._lock:
            await self._bring(MEMORY)
            self._go_on()

    async def _bring(self, parts: Sequence[str]) -> None:
        """Take back memory that is away: that of the weights comes first."""
        for part in parts:
            if part in self._away:
                await self._ask(self._client.resume_memory([part]), f"get memory for its {part}")
                self._away = tuple(other for other in self._away if other != part)

    async def _ask(self, answer: Coroutine[Any, Any, None], what: str) -> None:
        try:
            await answer
        except EngineError as error:
            raise EngineDead(f"SGLang could not {what}: {error}") from error

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        """Through memory that SGLang maps or a file, written before sampling stops.

        Raises `EngineError` for a missing, unknown or misshapen weight, and `CannotMap` for `SharedWeights` of another
        process that SGLang cannot map; nothing has changed then. If SGLang fails while it loads, or they are
        `Overwritten` meanwhile, the engine refuses turns until an update succeeds.
        """
        self._check_alive()
        try:
            await self._update(weights, version)
        except NotThisWay as error:
            _log.warning("New weights go through files from now on: %s.", error)
            self._way = self._file
            await self._update(error.weights, version)

    async def _update(self, weights: WeightHandle, version: int) -> None:
        way = self._way
        prepared = await way.prepare(weights)
        try:
            async with self._lock:
                try:
                    await self._stop()
                    await self._bring(["weights"])
                    await self._load(way, prepared, version)
                finally:
                    self._go_on()
        finally:
            await way.forget(prepared)

    async def _load(self, way: Way, prepared: Any, version: int) -> None:
        try:
            self.loads_by = await way.load(self._client, prepared, version)
        except (HalfLoaded, Overwritten) as error:
            self._failure = str(error)
            raise
        self._failure = None
        self.policy_version = version
        self._updates += 1

    def _check_alive(self) -> None:
        if self._closed:
            raise EngineError("the sglang engine is closed")
        if not self.max_model_len:
            raise EngineError("the sglang engine was not started")
        if self._server is not None:
            self._server.check()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._open.set()
        with suppress(EngineError):  # a server that is gone has ended them
            await self._end_requests()
        if self._server is not None:
            await self._server.stop()
        await self._client.close()


def _sampling(params: SamplingParams, max_tokens: int) -> dict[str, Any]:
    """As SGLang takes it; with `ignore_eos` it would not heed stop tokens either."""
    sampling: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "stop_token_ids": list(params.stop_token_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,
    }
    if params.seed is not None:
        sampling["sampling_seed"] = params.seed
    return sampling
