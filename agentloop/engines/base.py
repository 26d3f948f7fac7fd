"""What the loop asks of an engine: token ids in, sampled token ids with logprobs and policy versions out."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from agentloop.errors import EngineError

if TYPE_CHECKING:
    import torch

    from agentloop.types.image import PlacedImage


class FinishReason(StrEnum):
    STOP = "stop"
    """A stop token was sampled, or the text came to hold a stop string; that token is the last of the ids."""
    LENGTH = "length"
    """Cut: `max_tokens` or the engine's context length was reached."""
    ABORT = "abort"
    """Cancelled by `Engine.abort` or by closing the engine."""


@dataclass(slots=True, frozen=True, kw_only=True)
class SamplingParams:
    """How to sample one turn."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    """The turn ends with the token that completes one of them in its text; nothing of that token is cut."""
    seed: int | None = None
    """Of this turn; with it and the same weights an engine samples the same tokens, as far as its kernels allow."""


@dataclass(slots=True, frozen=True)
class Generation:
    """One sampled turn. The three arrays have one entry a token."""

    ids: array[int]
    """Typecode i."""
    logprobs: array[float]
    """Typecode f; log-probability of each sampled id under the distribution that it was sampled from, temperature
    included, before top_p and top_k (vLLM: `logprobs_mode="processed_logprobs"` less the truncation)."""
    versions: array[int]
    """Typecode i; the policy version that sampled each id."""
    finish_reason: FinishReason

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.logprobs) == len(self.versions)


class EngineDead(EngineError):
    """The engine has ended and answers nothing any more; a new one may go on with the turn."""

    def __init__(self, message: str, sampled: Generation | None = None) -> None:
        super().__init__(message)
        self.sampled = sampled
        """What the turn had sampled by then, as far as it is known."""


class TakesWeights(Protocol):
    """An engine, or several of them that are updated as one."""

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """See `Engine.update_weights`."""


class Engine(Protocol):
    """Generates turns for many trajectories at once. All methods belong to one event loop."""

    policy_version: int
    """Of the weights that the next token is sampled with."""
    max_model_len: int
    """Longest prompt plus answer, in tokens."""

    async def start(self) -> None:
        """Load, warm up. Raises `UserError` where the model or the hardware cannot be used."""

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        trajectory_id: str,
        images: Sequence[PlacedImage] = (),
    ) -> Generation:
        """Sample one turn after `prompt` (the whole trajectory so far; the engine keeps what it can of it cached).

        `images` are those of the whole prompt, which has all tokens of each already: nothing is expanded here.
        `prompt` may grow after the call returned and must not be written to. Cancelling the coroutine aborts the
        request. Raises `EngineError`, `EngineDead` where the engine itself has ended.
        """
        ...

    def release(self, trajectory_id: str) -> None:
        """The trajectory is over: its cache may go. Unknown ids are ignored."""

    async def pause(self) -> None:
        """Stop sampling, keep the requests and their caches. Returns when no token is being computed any more."""

    async def resume(self) -> None: ...

    async def sleep(self, *, keep_weights: bool = True) -> None:
        """Leave the GPU to others: stop sampling, give back the memory of caches and weights. Turns in flight, and
        those that come, wait as in a pause.

        Without `keep_weights` the weights are thrown away, and `update_weights` has to come before `wake`; it may come
        in any case. Raises `EngineDead` where the engine cannot sleep any more.
        """

    async def wake(self) -> None:
        """Take the memory back, and go on where `sleep` or a pause since then left off. Raises `EngineDead` where that
        fails. An engine that does not sleep stays as it is."""

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take new weights under Hugging Face names. Requests in flight stay in flight: an engine that runs is paused,
        updated and resumed; their later tokens carry `version`. One that sleeps takes memory for its weights only, and
        sleeps on."""

    async def close(self) -> None:
        """Ends the requests in flight with `FinishReason.ABORT`. May be called twice."""
