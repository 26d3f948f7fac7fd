"""`SglangEngine`: sample with an SGLang server, which it starts or which runs already; token ids in and out."""

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
from agentloop.engines.sglang.client import MEMORY, SglangClient
from agentloop.engines.sglang.parts import Part
from agentloop.engines.sglang.server import SglangServer
from agentloop.engines.sglang.weights import FileTransport, HalfLoaded, MemoryTransport, NotThisTransport, Transport
from agentloop.engines.sglang.worker import LOADER
from agentloop.engines.stop_strings import StopFinder
from agentloop.engines.token_listeners import listener
from agentloop.errors import EngineError, UserError
from agentloop.process.threads import DECODING
from agentloop.types.grammar import Grammar
from agentloop.weights.checkpoint_names import CheckpointNames
from agentloop.weights.files import checkpoint_shapes
from agentloop.weights.shelf import Overwritten

if TYPE_CHECKING:
    from agentloop.weights.handle import WeightHandle

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_AGAIN_SECONDS = 0.05
"""Time after which the abort of all requests is repeated: a request may reach the server after the first one."""
_ABORT_SECONDS = 5.0
"""Time to wait for the abort of a cancelled request: the server may hang."""


class SglangEngine(Engine):
    """Sample with a server that this engine starts, or with the server at `url`.

    A server at `url` must serve `model` to no other client: a pause aborts all requests. `server_args` are further
    options of `sglang.launch_server`, such as {"attention_backend": "triton"}. Images are not supported
    (docs/scaling/sglang.md explains why). Stop strings are found after a turn ended, and later tokens are discarded.
    Seeds need {"enable_deterministic_inference": True}. Log-probabilities are those of the whole distribution at the
    temperature; at temperature 0, those at temperature 1.

    SGLang does not report which tokens of a turn were sampled before its weights changed. So a pause aborts the running
    requests, which return their tokens, and `resume` sends them again: each part has one version. Their keys and values
    stay in the server's prefix cache for these turns. Turns that start later find nothing of older weights there
    (`extra_key`).

    A server started here maps the memory of new weights. A server at `url`, and every server of a mixture of experts,
    reads them from a folder below `weights_folder`, which both processes must see. A server started here has a random
    key; `api_key_variable` names the environment variable with the key of a server at `url`. `sleeps`: `sleep` will be
    called, which SGLang must know at its start.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        url: str | None = None,
        api_key_variable: str | None = None,
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
        if "config" in (server_args or {}):
            raise UserError("server_args.config is the engine's own. Put the options of that file into server_args.")
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
        self._client = SglangClient(url or "", _key_in(api_key_variable))
        self._start_seconds = start_seconds
        self._sleeps = sleeps
        self._weights_folder = Path(weights_folder)
        self._ranks = int(arguments["tp_size"])
        self._transport: Transport
        self.loads_by = ""
        """How the server loaded the last weights, as `Transport.load` returns it."""
        self._stops = StopFinder(self._model)
        self._running: set[str] = set()
        """Names of the requests that run on the server."""
        self._drained = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._away: tuple[str, ...] = ()
        """Parts of the server's memory that are released."""
        self._paused = False
        self._lock = asyncio.Lock()
        self._updates = 0
        self._failure: str | None = None
        self._closed = False
        self.max_model_len = max_model_len or 0
        self.policy_version = 0

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._client.url

    @property
    def api_key(self) -> str | None:
        """Key that requests to the server need."""
        return self._client.key

    async def start(self) -> None:
        """Start the server, which takes a minute or more, or check the one at `url`. Raises `UserError`."""
        shapes, names = await asyncio.to_thread(self._look_at_model)
        self._file = FileTransport(shapes, self._model, self._weights_folder, names)
        maps = self._server is not None and names is None
        self._transport = MemoryTransport(shapes, self._ranks) if maps else self._file
        if self._server is not None:
            await self._launch(self._server)
        context = await self._client.check(self._model)
        if self.max_model_len > context:
            raise UserError(
                f"max_model_len={self.max_model_len} is above the context of {context} tokens that the SGLang server "
                f"at {self._client.url} has. Lower it, or start the server with --context-length."
            )
        self.max_model_len = self.max_model_len or context

    def _look_at_model(self) -> tuple[dict[str, tuple[int, ...]] | None, CheckpointNames | None]:
        """Return the shapes in the checkpoint, if it is a folder, and its names, if transformers has others."""
        folder = Path(self._model)
        if not folder.is_dir() and folder.is_absolute():
            raise UserError(f"There is no model folder {self._model!r}.")
        shapes = checkpoint_shapes(folder) if folder.is_dir() else None
        if folder.is_dir() and not (folder / "config.json").is_file():
            return shapes, None
        names = CheckpointNames(self._model)
        return shapes, None if names.are_same else names

    async def _launch(self, server: SglangServer) -> None:
        await server.start()
        await self._client.close()
        self._client = SglangClient(server.url, server.key)
        try:
            async with asyncio.timeout(self._start_seconds):
                while not await self._client.is_up():
                    server.check()
                    await asyncio.sleep(_POLL_SECONDS)
            server.forget_key()
        except (EngineDead, TimeoutError) as error:
            reason = str(error) or f"not ready after {self._start_seconds:g} s: {server.last_words()}"
            await self.close()
            raise UserError(f"SGLang cannot start with the model {self._model!r}: {reason}") from error

    async def check_grammar(self, grammar: Grammar) -> None:
        """Refuse: the servers of this engine exchange token ids and run without the tokenizer that grammars need."""
        raise UserError(
            "The engine sglang cannot constrain turns, because it runs SGLang without a tokenizer "
            "(skip_tokenizer_init). Use the engine vllm or hf, or leave out response_format, tool_choice and `strict`."
        )

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
        stops = await DECODING.run(self._stops.of, params.stop_strings) if params.stop_strings else None
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
        """Return why the turn ended, or None if it continues."""
        if part.ids and part.ids[-1] in params.stop_token_ids:
            return FinishReason.STOP
        if len(tokens) >= end:
            return FinishReason.LENGTH
        if self._closed:
            return FinishReason.ABORT
        # A pause aborted the request, or the model sampled its end token, which does not end this turn.
        return None

    async def _part(self, tokens: Sequence[int], params: SamplingParams, end: int, key: str) -> tuple[Part, int]:
        """Sample until the turn ends or a pause begins; return the tokens and their version."""
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
            part = await self._client.generate(request, listener())
        except asyncio.CancelledError:
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_ABORT_SECONDS):
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
        assert self._sleeps, "set `sleeps` to use sleep"
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
        """Take released memory back, that of the weights first."""
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
        """Load weights from memory that SGLang maps, or from a file, written before sampling stops.

        Raises `EngineError` for a missing, unknown or misshapen weight, and `CannotMap` if SGLang cannot map
        `SharedWeights` of another process; the weights are unchanged then. If SGLang fails while it loads, or the
        weights are `Overwritten` meanwhile, the engine refuses turns until an update succeeds.
        """
        self._check_alive()
        try:
            await self._update(weights, version)
        except NotThisTransport as error:
            _log.warning("New weights go through files from now on: %s.", error)
            self._transport = self._file
            await self._update(error.weights, version)

    async def _update(self, weights: WeightHandle, version: int) -> None:
        transport = self._transport
        prepared = await transport.prepare(weights)
        try:
            async with self._lock:
                try:
                    await self._stop()
                    await self._bring(["weights"])
                    await self._load(transport, prepared, version)
                finally:
                    self._go_on()
        finally:
            await transport.forget(prepared)

    async def _load(self, transport: Transport, prepared: Any, version: int) -> None:
        try:
            self.loads_by = await transport.load(self._client, prepared, version)
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


def _key_in(variable: str | None) -> str | None:
    """Return the key in an environment variable. Raises `UserError` if it is not set."""
    if variable is not None and not os.environ.get(variable):
        raise UserError(f"The environment variable {variable!r} of api_key_variable is not set. Set it to the key.")
    return os.environ[variable] if variable is not None else None


def _sampling(params: SamplingParams, max_tokens: int) -> dict[str, Any]:
    """Convert to SGLang's parameters, without `ignore_eos`: with it SGLang would ignore stop tokens, too."""
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
