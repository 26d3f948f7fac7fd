"""`ApiEngine`: a model behind an HTTP API as an engine."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentloop.engines.api.anthropic import AnthropicMessages
from agentloop.engines.api.client import ApiClient
from agentloop.engines.api.openai import OpenAiChat
from agentloop.engines.api.protocol import Answer, ApiProtocol
from agentloop.engines.api.usage import Prices
from agentloop.engines.base import Engine, FinishReason, Generation, SamplingParams
from agentloop.errors import EngineError, UserError
from agentloop.process.threads import DECODING
from agentloop.registry.options import parse_options
from agentloop.rendering.transcript import ids_of, lines_of

if TYPE_CHECKING:
    from agentloop.weights.handle import WeightHandle


class ApiEngine(Engine):
    """Sends the messages of an episode, and returns the turn as a line of its transcript.

    Token ids are unknown, so log-probabilities are NaN. Temperature, top_p, top_k, seed and stop strings are sent if
    the API has them; services omit the stop string from the text that it ends.
    """

    policy_version = 0

    def __init__(
        self,
        protocol: ApiProtocol,
        *,
        model: str,
        max_model_len: int = 1 << 20,
        base_url: str | None = None,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        concurrency: int = 32,
        attempts: int = 6,
        timeout: float = 600.0,
        pause: float = 1.0,
        prices: Mapping[str, float] | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """Set the endpoint. Raises `UserError` for invalid options and a missing key.

        `base_url` ends in /v1. `api_key_env` is the environment variable with the key. `headers` are added to every
        request, and `extra_body` to its body: a value of None removes a field. At most `concurrency` requests run at
        once. Each gets `attempts` attempts of `timeout` seconds; the first pause between attempts is `pause` seconds,
        and each further pause doubles. `prices` are fields of `Prices`.
        """
        if not (concurrency > 0 and attempts > 0 and timeout > 0 and pause >= 0):
            raise UserError("engine.options: concurrency, attempts and timeout must be above 0, and pause 0 or more.")
        self.max_model_len = max_model_len
        self._protocol = protocol
        self._prices = None
        if prices is not None:
            self._prices = parse_options(Prices, prices, of=f"engine {protocol.name!r}", key="engine.options.prices")
        self._extra = {"model": model, **(extra_body or {})}
        self._client = ApiClient(
            protocol,
            model=model,
            base_url=base_url,
            api_key_env=api_key_env,
            headers=dict(headers or {}),
            concurrency=concurrency,
            attempts=attempts,
            timeout=timeout,
            pause=pause,
        )
        self._running: set[asyncio.Task[tuple[Answer, int]]] = set()
        self._closed = False

    async def start(self) -> None:
        """Check the endpoint and the key. Raises `UserError`."""
        await self._client.start()

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        if self._closed:
            raise EngineError(f"the {self._protocol.name} engine is closed")
        task = asyncio.ensure_future(self._send(prompt, params, images))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            answer, retries = await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and not (caller and caller.cancelling()):
                return Generation(array("i"), array("f"), array("i"), FinishReason.ABORT)
            raise
        ids = ids_of([{"sampled": answer.message}])
        return Generation(
            ids,
            array("f", [math.nan]) * len(ids),
            array("i", [self.policy_version]) * len(ids),
            answer.finish_reason,
            self._metrics(answer, retries),
        )

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        """Raise `EngineError`: the weights belong to the service."""
        raise EngineError(f"the {self._protocol.name} engine cannot take weights: use it for evaluation only")

    async def close(self) -> None:
        self._closed = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self._client.close()

    async def _send(self, prompt: Sequence[int], params: SamplingParams, images: Sequence[Any]) -> tuple[Answer, int]:
        if images:  # encoding them takes milliseconds
            body = await DECODING.run(self._protocol.request, lines_of(prompt), params, images)
        else:
            body = self._protocol.request(lines_of(prompt), params, images)
        body = {name: value for name, value in (body | self._extra).items() if value is not None}
        return await self._client.send(body)

    def _metrics(self, answer: Answer, retries: int) -> dict[str, float]:
        usage = answer.usage
        metrics = {
            "api/input_tokens": float(usage.input),
            "api/cached_input_tokens": float(usage.cached_input),
            "api/output_tokens": float(usage.output),
            "api/refusals": float(answer.refused),
            "api/retries": float(retries),
        }
        return metrics if self._prices is None else metrics | {"api/cost": self._prices.cost(usage)}


class OpenAiEngine(ApiEngine):
    """Any endpoint of OpenAI's chat completions; `max_tokens_field` may be `max_tokens` for older servers."""

    def __init__(self, *, max_tokens_field: str = "max_completion_tokens", **options: Any) -> None:
        super().__init__(OpenAiChat(max_tokens_field), **options)


class AnthropicEngine(ApiEngine):
    """Any endpoint of Anthropic's Messages API; `cache` uses its prompt cache."""

    def __init__(self, *, cache: bool = True, **options: Any) -> None:
        super().__init__(AnthropicMessages(cache), **options)
