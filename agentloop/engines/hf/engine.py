"""`HfEngine`: transformers in this process, with its own continuous batching.

The continuous batching of transformers (5.19) takes no seed per request, and does not report which weights sampled a
token. On CPUs its attention uses one dense mask over the tokens of all requests, which is slow: with a Qwen3 of 1.3M
parameters, 128 requests of 150 + 40 tokens and one thread, it samples 59 tokens per CPU second, this engine 2,200.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentloop.engines.base import Engine, Generation, SamplingParams
from agentloop.engines.hf.cache import SlotCache
from agentloop.engines.hf.images import Shown
from agentloop.engines.hf.model import copy_weights, load_model, shape_of, states_of
from agentloop.engines.hf.routing import SlotRouting
from agentloop.engines.hf.worker import Request, Worker
from agentloop.engines.stop_strings import StopFinder
from agentloop.engines.token_listeners import Listener, listener
from agentloop.errors import EngineError, UserError
from agentloop.grammars.of_model import ModelGrammars
from agentloop.process.threads import DECODING
from agentloop.types.grammar import Grammar
from agentloop.types.image import PlacedImage
from agentloop.vision.loading import tower_of
from agentloop.weights.handle import WeightHandle

_CPU_CACHE_BYTES = 4 << 30
_CUDA_CACHE_SHARE = 0.5


class HfEngine(Engine):
    """Samples with a causal language model of transformers in one thread of this process.

    The model must use the attention interface of transformers. Images work with the vision tower of Qwen2-VL,
    Qwen2.5-VL and Qwen3-VL. `model` is a folder, a name, or a module, which is copied.

    Each step computes all running turns in one packed forward pass. A slot keeps the keys and values of a trajectory
    between its turns, and a common prefix of several prompts is computed once. After `update_weights`, running turns
    keep keys and values of the old weights; turns that start later compute their prefix again.

    `cache_bytes` limits the cache (default: 4 GiB; on CUDA half of the free memory). `max_slots` is lowered to the
    number that fits at `max_model_len`. `seed` is used for turns without their own seed. With `routed_experts`, turns
    include their experts (`Generation.routed`).
    """

    def __init__(
        self,
        model: str | Path | torch.nn.Module,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        max_model_len: int | None = None,
        max_slots: int = 256,
        max_batch_tokens: int = 2048,
        cache_bytes: int | None = None,
        seed: int | None = None,
        routed_experts: bool = False,
    ) -> None:
        sizes = {"max_model_len": max_model_len, "max_slots": max_slots, "max_batch_tokens": max_batch_tokens}
        for name, number in sizes.items():
            if number is not None and number < 1:
                raise UserError(f"engine.options.{name} is {number}: set it to 1 or more.")
        self._source = model
        self._stops = StopFinder(model)
        self._grammars = ModelGrammars(model)
        self._device = _device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        default = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        self.dtype = _dtype(dtype) if dtype is not None else default
        self._max_slots = max_slots
        self._max_batch_tokens = max_batch_tokens
        self._cache_bytes = cache_bytes
        self._returns_routing = routed_experts
        self._seeds = np.random.default_rng(seed)
        self._worker: Worker | None = None
        self._closed = False
        self._vocabulary = 0
        self.max_model_len = max_model_len or 0
        self.policy_version = 0

    @property
    def model(self) -> torch.nn.Module:
        """The model that samples, once the engine has started."""
        return self._alive().model

    async def start(self) -> None:
        """Load the model and check that this engine can run it. Raises `UserError`."""
        assert self._worker is None, "start is called once"
        self._worker = await asyncio.to_thread(self._load)
        self._worker.start()

    def _load(self) -> Worker:
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise UserError("engine.options.device is cuda, but torch sees no CUDA device. Set it to cpu.")
        model = load_model(self._source, self._device, self.dtype)
        shape = shape_of(model)
        if self.max_model_len > shape.context:
            raise UserError(
                f"max_model_len={self.max_model_len} exceeds the {shape.context} positions of the model: lower it."
            )
        self.max_model_len = self.max_model_len or min(shape.context, 4096)
        self._vocabulary = shape.vocabulary
        per_token = SlotCache.bytes_per_token(shape.layers, shape.kv_heads, shape.head_dim, self.dtype)
        fit = self._budget() // (per_token * self.max_model_len)
        if fit < 1:
            raise UserError(
                f"One trajectory of max_model_len={self.max_model_len} tokens needs "
                f"{per_token * self.max_model_len >> 20} MiB of cache, more than cache_bytes; lower max_model_len."
            )
        cache = SlotCache(
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            slots=min(self._max_slots, fit),
            max_len=self.max_model_len,
            dtype=self.dtype,
            device=self._device,
            states=states_of(model),
            routing=SlotRouting(model) if self._returns_routing else None,
        )
        return Worker(model, cache, max_batch_tokens=self._max_batch_tokens)

    def _budget(self) -> int:
        if self._cache_bytes is not None:
            return self._cache_bytes
        if self._device.type == "cuda":
            return int(torch.cuda.mem_get_info(self._device)[0] * _CUDA_CACHE_SHARE)
        return _CPU_CACHE_BYTES

    async def check_grammar(self, grammar: Grammar) -> None:
        await DECODING.run(self._grammars.check, grammar)

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        worker = self._alive()
        if images and tower_of(worker.model) is None:
            raise EngineError("the prompt has images, but the model has no vision tower: use a vision-language model")
        ids = np.array(prompt, np.int32)
        if not 0 < len(ids) < self.max_model_len:
            raise EngineError(f"the prompt has {len(ids)} tokens, but the engine takes 1 to {self.max_model_len - 1}")
        if ids.min() < 0 or ids.max() >= self._vocabulary:
            raise EngineError(f"the prompt has a token id outside the vocabulary of {self._vocabulary} tokens")
        stops = await DECODING.run(self._stops.of, params.stop_strings) if params.stop_strings else None
        state = None if params.grammar is None else await DECODING.run(self._grammars.begin, params.grammar)
        worker = self._alive()  # it may have been closed meanwhile, and would never answer
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        request = Request(
            trajectory_id=trajectory_id,
            prompt=ids,
            params=params,
            stops=stops,
            grammar=state,
            seed=(int(self._seeds.integers(1 << 63)) if params.seed is None else params.seed) & ((1 << 64) - 1),
            limit=min(len(ids) + params.max_tokens, self.max_model_len),
            done=lambda result: _post(loop, future, result),
            tell=_teller(loop, listener()),
            shown=Shown.of(len(ids), images) if images else None,
        )
        worker.post(lambda: worker.submit(request))
        try:
            return await future
        except asyncio.CancelledError:
            worker.post(lambda: worker.abort(request))
            raise

    def release(self, trajectory_id: str) -> None:
        if self._worker is not None and not self._closed:
            worker = self._worker
            worker.post(lambda: worker.release(trajectory_id))

    async def pause(self) -> None:
        await self._between_steps(lambda worker: setattr(worker, "paused", True))

    async def resume(self) -> None:
        await self._between_steps(lambda worker: setattr(worker, "paused", False))

    async def sleep(self, *, keep_weights: bool = True) -> None:
        await self._between_steps(lambda worker: worker.sleep())

    async def wake(self) -> None:
        await self._between_steps(lambda worker: worker.wake())

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        """Copy the weights in the worker thread, between two steps.

        Raises `EngineError` for a missing or unknown weight or a wrong shape; the model is then unchanged.
        """

        def update(worker: Worker) -> None:
            copy_weights(worker.model, weights.tensors())
            worker.weights_changed(version)

        await self._between_steps(update)
        self.policy_version = version

    async def _between_steps(self, work: Callable[[Worker], None]) -> None:
        worker = self._alive()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def command() -> None:
            try:
                work(worker)
            except Exception as error:  # handed to the caller
                _post(loop, future, error)
            else:
                _post(loop, future, None)

        worker.post(command)
        await future

    def _alive(self) -> Worker:
        if self._worker is None or self._closed:
            raise EngineError("the hf engine is closed" if self._closed else "the hf engine was not started")
        return self._worker

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._worker is not None:
            self._worker.post(self._worker.stop)
            await asyncio.to_thread(self._worker.join)
            self._worker = None


def _teller(loop: asyncio.AbstractEventLoop, hear: Listener | None) -> Callable[[int], None] | None:
    """Return a function that passes tokens from the worker thread to the listener."""

    def tell(token: int) -> None:
        assert hear is not None
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(hear, (token,))

    return tell if hear is not None else None


def _post(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any) -> None:
    """Resolve a future from the worker thread. If the loop is closed already, nobody awaits it."""
    try:
        loop.call_soon_threadsafe(_settle, future, result)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise UserError(f"engine.options.device={device!r} is not a device of torch; use 'cpu' or 'cuda'.") from error


def _dtype(name: str | torch.dtype) -> torch.dtype:
    if isinstance(name, torch.dtype):
        return name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UserError(f"dtype={name!r} is not a dtype of torch; use 'float32' or 'bfloat16'.")
    return found
