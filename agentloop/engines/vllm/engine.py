"""`VllmEngine`: vLLM's `AsyncLLM` in this process, with its engine core in another process."""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import Engine, EngineDead, FinishReason, Generation, SamplingParams
from agentloop.engines.stop_strings import StopFinder, StopStrings, up_to_stop
from agentloop.engines.token_listeners import listener
from agentloop.engines.vllm.adapters import request as adapter_request
from agentloop.engines.vllm.adapters import start_arguments
from agentloop.engines.vllm.compat import check_arguments, missing_attributes, takes_stop_tokens
from agentloop.engines.vllm.core import DEAD, OutputFence, unless_dead
from agentloop.engines.vllm.images import ImageSender
from agentloop.engines.vllm.launch import VllmLauncher
from agentloop.engines.vllm.requests import generation_of, versions_of, vllm_params
from agentloop.engines.vllm.sleep import SleepMode
from agentloop.engines.vllm.weights import MemoryTransport
from agentloop.errors import EngineError, UserError
from agentloop.grammars.of_model import ModelGrammars
from agentloop.process.threads import DECODING
from agentloop.types.grammar import Grammar

if TYPE_CHECKING:
    from agentloop.types.image import PlacedImage
    from agentloop.weights.handle import WeightHandle

_ABANDON_SECONDS = 0.2


@dataclass(eq=False, slots=True)
class _Turn:
    name: str
    marks: list[tuple[int, int]]
    """Pairs (index of a token, policy version that samples from there on)."""
    added: bool = False
    """Whether vLLM has received the request."""


class VllmEngine(Engine):
    """Samples with vLLM, on CUDA or CPU (`compat.TESTED`): token ids in and out, one output per turn.

    `shares_gpu`: other processes allocate GPU memory while this engine starts. `sleeps`: `sleep` will be called; vLLM
    must know this when it starts, and supports it only on GPUs. `max_pixels` is the size of the largest image, for
    which vLLM reserves memory (default: the limit of the model's processor). With `adapters`, a rank, updates bring
    adapters of that rank instead of weights. `engine_args` are further fields of vLLM's `AsyncEngineArgs`.

    Log-probabilities are vLLM's `processed_logprobs`: at the sampling temperature, and renormalised over the tokens
    that `top_p` and `top_k` leave, as in the hf engine. At temperature 0 they are those at temperature 1. Logits are
    float32 (`head.py`) unless the head is quantised.

    After `update_weights`, running turns keep their keys and values. Turns that start later never reuse the prefix
    cache of older weights: its salt is the number of updates, and old blocks are evicted in time. vLLM cannot reset the
    cache while a turn is running.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "bfloat16",
        max_model_len: int | None = None,
        gpu_memory_utilization: float = 0.85,
        tensor_parallel_size: int = 1,
        seed: int | None = None,
        enforce_eager: bool | None = None,
        max_num_seqs: int = 256,
        shares_gpu: bool = False,
        sleeps: bool = False,
        max_pixels: int | None = None,
        adapters: int | None = None,
        quantization: str | None = None,
        **engine_args: Any,
    ) -> None:
        check_arguments(engine_args)
        self._model = os.fspath(model)
        self._stops = StopFinder(self._model)
        self._grammars = ModelGrammars(os.fspath(model))
        arguments = {
            "dtype": dtype,
            "max_model_len": max_model_len,
            "gpu_memory_utilization": gpu_memory_utilization,
            "tensor_parallel_size": tensor_parallel_size,
            "seed": seed if seed is not None else 0,
            "enforce_eager": enforce_eager,
            "max_num_seqs": max_num_seqs,
            "quantization": quantization,
            **({} if adapters is None else start_arguments(adapters, engine_args.pop("compilation_config", None))),
            **engine_args,
        }
        self._adapters = adapters
        self._launcher = VllmLauncher(
            os.fspath(model), arguments, shares_gpu=shares_gpu, sleeps=sleeps, max_pixels=max_pixels
        )
        self.sleeps = sleeps
        """Whether the engine can offload its memory (`sleep`)."""
        self._sleep = SleepMode()
        self._resumes_awake = True
        """Whether sampling continues after `wake`: the engine was not paused before or during the sleep."""
        self.llm: Any = None
        """vLLM's `AsyncLLM`, once the engine has started; public for its metrics."""
        self._closed = False
        self._count = 0
        self._updates = 0
        self._paused = False
        self._turns: set[_Turn] = set()
        self.transport = MemoryTransport(self._model, adapters)
        self.loads_by = ""
        """How the last weights were loaded: the result of `MemoryTransport.load`."""
        self._images: ImageSender | None = None
        """None for a model without a vision tower."""
        self._lock = asyncio.Lock()
        self._failure: str | None = None
        self.max_model_len = max_model_len or 0
        self.policy_version = 0

    async def start(self) -> None:
        """Start vLLM, which takes 20 s or more. Raises `UserError` if it cannot start."""
        assert self.llm is None, "start is called once"
        launching = asyncio.ensure_future(asyncio.to_thread(self._launcher.launch))
        try:
            self.llm = await asyncio.shield(launching)
        except asyncio.CancelledError:
            # The thread goes on, and its engine core would keep this process from ending.
            while not launching.done():
                self._launcher.abandon()
                await asyncio.wait({launching}, timeout=_ABANDON_SECONDS)
            if launching.exception() is None:
                self.llm = launching.result()
            await self.close()
            raise
        missing = missing_attributes(self.llm)
        if missing:
            await self.close()
            raise UserError(f"The installed vLLM lacks attributes that the vllm engine uses: {', '.join(missing)}.")
        self._fence = OutputFence(self.llm)
        await self.llm.collective_rpc("agentloop_watch", args=(os.getpid(),))
        await self.llm.collective_rpc("agentloop_prepare", args=(self._adapters,))
        if self._launcher.sees_images:
            self._images = ImageSender()
            await self._images.start(self.llm)
        self.max_model_len = int(self.llm.vllm_config.model_config.max_model_len)

    async def check_grammar(self, grammar: Grammar) -> None:
        if not self._launcher.takes_grammars:
            raise UserError(
                "vLLM was started without a tokenizer, which constrained turns need. Save the tokenizer into the model "
                "folder, and leave skip_tokenizer_init out of engine.options."
            )
        await DECODING.run(self._grammars.check, grammar)
        if not takes_stop_tokens() and set(grammar.stop_token_ids) != {self._stops.tokenizer.eos_token_id}:
            raise UserError(
                "The installed vLLM ends constrained turns with the tokenizer's own end token alone, but turns of this "
                f"model end with {list(grammar.stop_token_ids)}. Install vLLM 0.32."
            )

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        llm = self._alive()
        if self._failure is not None:
            raise EngineError(self._failure)
        if images and self._images is None:
            raise EngineError("the prompt has images, but the model has no vision tower of a known family")
        ids = list(prompt)
        room = self.max_model_len - len(ids)
        if not 0 < len(ids) < self.max_model_len:
            raise EngineError(f"the prompt has {len(ids)} tokens, but the engine takes 1 to {self.max_model_len - 1}")
        stops = await self._stops_of(llm, params)
        self._count += 1
        turn = _Turn(f"{trajectory_id}-{self._count}", [(0, self.policy_version)])
        self._turns.add(turn)
        try:
            output = await self._request(
                llm, turn, ids, images, vllm_params(params, room, in_parts=listener() is not None)
            )
        except asyncio.CancelledError:
            await llm.abort(turn.name)
            raise
        except EngineError:
            raise
        except Exception as error:  # the boundary to vLLM
            if llm.errored:
                raise EngineDead(DEAD, self._sampled(turn)) from error
            raise EngineError(f"vLLM: {type(error).__name__}: {error}") from error
        finally:
            self._turns.discard(turn)
        generation = generation_of(output, turn.marks, params.routed_from)
        return generation if stops is None else up_to_stop(generation, stops)

    async def _stops_of(self, llm: Any, params: SamplingParams) -> StopStrings | None:
        """Return the stop strings of a turn; for these vLLM, which starts without a tokenizer, gets one."""
        if not params.stop_strings:
            return None
        stops = await DECODING.run(self._stops.of, params.stop_strings)
        llm.output_processor.tokenizer = self._stops.tokenizer
        return stops

    async def _request(self, llm: Any, turn: _Turn, ids: list[int], images: Sequence[PlacedImage], params: Any) -> Any:
        prompt = await self._input(ids, images)
        adapter = None if self._adapters is None else adapter_request()
        collector = await llm.add_request(turn.name, prompt, params, lora_request=adapter)
        turn.added = True
        output, hear, heard = await collector.get(), listener(), 0
        while not output.finished:  # only with a listener
            assert hear is not None
            hear(output.outputs[0].token_ids[heard:])
            heard = len(output.outputs[0].token_ids)
            output = await collector.get()
        return output

    async def _input(self, ids: list[int], images: Sequence[PlacedImage]) -> Any:
        from vllm.inputs import tokens_input

        if self._images is None or not images:
            return tokens_input(ids, cache_salt=self._salt)
        items: dict[str, Any] = {}
        while True:
            items |= await self._images.prepare(images, self._salt)
            prompt = self._images.input(ids, images, items, self._salt)
            if prompt is not None:
                return prompt

    @property
    def _salt(self) -> str:
        """Salt of vLLM's caches: a turn reuses only entries with the same salt."""
        return f"{self._updates}"

    def _sampled(self, turn: _Turn) -> Generation | None:
        """Return the tokens of a turn that a dead engine core sent before it died."""
        state = self._states().get(turn.name)
        if state is None or not (ids := array("i", state.detokenizer.output_token_ids)):
            return None
        logprobs = array("f", state.logprobs_processor.logprobs.logprobs)
        count = min(len(ids), len(logprobs))  # the core may have died between the two messages
        return Generation(ids[:count], logprobs[:count], versions_of(turn.marks, count), FinishReason.ABORT)

    def _states(self) -> dict[str, Any]:
        """Return vLLM's states of requests in flight, by name."""
        return {state.external_req_id: state for state in self.llm.output_processor.request_states.values()}

    @property
    def cache_tokens(self) -> int:
        """Capacity of the KV cache in tokens."""
        cache = self._alive().vllm_config.cache_config
        return int(cache.num_gpu_blocks or 0) * int(cache.block_size)

    async def pause(self) -> None:
        async with self._lock:
            await self._pause()

    async def _pause(self) -> None:
        if self._sleep.is_on:
            self._resumes_awake = False
        if self._paused:
            return
        # AsyncLLM.pause_generation does the same and then sleeps 20 ms. Keep the cache: otherwise vLLM would recompute
        # all running turns.
        llm = self._alive()
        await unless_dead(llm, llm.engine_core.pause_scheduler_async("keep", False))
        self._paused = True
        if any(turn.added for turn in self._turns):
            await self._fence.wait()

    async def resume(self) -> None:
        async with self._lock:
            await self._resume()

    async def _resume(self) -> None:
        if self._sleep.is_on:
            self._resumes_awake = True
        elif self._paused:
            llm = self._alive()
            await unless_dead(llm, llm.resume_generation())
            self._paused = False

    async def sleep(self, *, keep_weights: bool = True) -> None:
        assert self.sleeps, "create the engine with sleeps=True to use sleep"
        async with self._lock:
            llm = self._alive()
            if not self._sleep.is_on:
                self._resumes_awake = not self._paused
                await self._pause()
                await self._sleep.begin(llm, keep_weights=keep_weights)
                self._updates += 1  # the content of its caches is lost

    async def wake(self) -> None:
        async with self._lock:
            llm = self._alive()
            if self._sleep.is_on:
                await self._sleep.end(llm)
                self._paused = False
                if not self._resumes_awake:
                    await self._pause()

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        """Load weights from memory that vLLM's workers map, and that is filled before sampling stops.

        Raises `EngineError` for a missing or unknown weight or a wrong shape, and `CannotMap` if the workers cannot map
        `SharedWeights` of another process; the weights are then unchanged. If vLLM fails while it loads, or the weights
        are `Overwritten` meanwhile, the engine rejects turns until an update succeeds.
        """
        llm = self._alive()
        await self.transport.prepare(llm, weights, self._launcher.shapes)
        async with self._lock:
            was_paused = self._paused
            if self._sleep.is_on:
                await self._sleep.bring_weights(llm)
            else:
                await self._pause()
            try:
                self.loads_by = await self.transport.load(llm)
            except EngineDead:
                raise
            except EngineError as error:
                self._failure = str(error)
                await self._abort_all()
                raise
            else:
                self._failure = None
                self._mark(version)
            finally:
                if not was_paused and not llm.errored:
                    await self._resume()

    def _mark(self, version: int) -> None:
        """Record that running turns continue with `version`; sampling is paused, and all outputs have arrived."""
        states = self._states()
        for turn in self._turns:
            if (state := states.get(turn.name)) is not None:
                turn.marks.append((state.detokenizer.num_output_tokens(), version))
            elif not turn.added:  # any other turn has ended, and its output is about to be returned
                turn.marks.append((0, version))
        self.policy_version = version
        self._updates += 1

    async def _abort_all(self) -> None:
        await self.llm.abort([turn.name for turn in self._turns])

    def _alive(self) -> Any:
        if self.llm is None or self._closed:
            raise EngineError("the vllm engine is closed" if self._closed else "the vllm engine was not started")
        if self.llm.errored:
            raise EngineDead(DEAD)
        return self.llm

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.llm is not None:
            if not self.llm.errored:
                await self._abort_all()
            if (handler := getattr(self.llm, "output_handler", None)) is not None:
                handler.cancel()  # it would report the shutdown of the engine core as a crash
            await asyncio.to_thread(self.llm.shutdown, 10.0)
            await asyncio.to_thread(self._launcher.sockets.remove)
