"""The interface of engines: token ids in, sampled token ids with logprobs and policy versions out."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from agentloop.errors import EngineError, UserError
from agentloop.types.grammar import Grammar
from agentloop.types.routed_experts import RoutedExperts

if TYPE_CHECKING:
    from agentloop.types.image import PlacedImage
    from agentloop.weights.handle import WeightHandle


class FinishReason(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    """The engine sampled a stop token or completed a stop string; that token is the last of the ids."""
    LENGTH = "length"
    """The turn was cut: it reached `max_tokens` or the engine's context length."""
    ABORT = "abort"
    """The engine was closed, or aborted the turn."""


@dataclass(slots=True, kw_only=True)
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
    """Strings that end the turn with the token that completes one of them; that token is kept whole."""
    seed: int | None = None
    """Seed of this turn: with equal weights the engine samples equal tokens, if its kernels are deterministic."""
    grammar: Grammar | None = None
    """Form of this turn. A turn that is interrupted begins again, because its grammar begins at its first token."""
    routed_from: int = 0
    """Index of the first prompt token whose routed experts are returned, if the engine returns them."""


@dataclass(slots=True)
class Generation:
    """One sampled turn. The three arrays have one entry per token."""

    ids: array[int]
    """Typecode i."""
    logprobs: array[float]
    """Typecode f. Log-probability of each sampled id at the sampling temperature, normalised over the tokens that the
    grammar allows and, except for sglang (`EngineKind.reports_cut`), that top_p and top_k leave."""
    versions: array[int]
    """Typecode i. Policy version that sampled each id."""
    finish_reason: FinishReason
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further metrics of this turn, such as the tokens that a service bills; they are summed over the episode."""
    routed: RoutedExperts | None = None
    """Experts of prompt and turn from `SamplingParams.routed_from` on; None if the engine does not return them."""

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.logprobs) == len(self.versions)


class EngineDead(EngineError):
    """The engine has died; a new one may continue the turn."""

    def __init__(self, message: str, sampled: Generation | None = None) -> None:
        super().__init__(message)
        self.sampled = sampled
        """Tokens of the turn that were sampled before and are known."""


class ContextExceeded(EngineError):
    """The prompt leaves no room to sample in the model's context, as the engine reports."""


class TakesWeights(Protocol):
    """An engine, or several engines that are updated together."""

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        """Take new weights under Hugging Face names.

        Requests in flight continue: a running engine pauses, loads and resumes, and later tokens carry `version`. A
        sleeping engine allocates memory for its weights only, and stays asleep.
        """


class EngineControl(TakesWeights, Protocol):
    """Methods by which a run controls one engine, or the engines of all workers."""

    async def pause(self) -> None:
        """Stop sampling, but keep the requests and their caches. Return when the last computation has ended."""

    async def resume(self) -> None:
        """Continue sampling."""

    async def sleep(self, *, keep_weights: bool = True) -> None:
        """Free the GPU memory of caches and weights. Running and new turns wait, as in a pause.

        Without `keep_weights` the weights are discarded, and `update_weights` must be called before `wake`. Raises
        `EngineDead` if the engine cannot sleep any more.
        """

    async def wake(self) -> None:
        """Allocate the memory again and continue, unless the engine was paused meanwhile.

        Does nothing if the engine is awake. Raises `EngineDead` if it fails.
        """

    async def close(self) -> None:
        """End requests in flight with `FinishReason.ABORT`, and free all resources. A second call does nothing."""


class Engine(EngineControl, Protocol):
    """Generates turns for many trajectories at once. Call all methods from one event loop.

    Engines derive from this class, which provides defaults of `release`, `cache_tokens` and `restart_counts`.
    """

    policy_version: int
    """Version of the weights that sample the next token."""
    max_model_len: int
    """Largest number of tokens of prompt and answer together."""

    @property
    def cache_tokens(self) -> int | None:
        """Capacity of the KV cache in tokens; None if unknown."""
        return None

    @property
    def restart_counts(self) -> Mapping[str, int]:
        """Number of restarts so far, by kind of failure."""
        return {}

    async def start(self) -> None:
        """Load the model and warm up. Raises `UserError` if the model or the hardware cannot be used."""

    async def check_grammar(self, grammar: Grammar) -> None:
        """Compile a grammar for later turns. Raises `UserError` if this engine cannot sample with it."""
        raise UserError("This engine cannot constrain turns. Use the engine vllm or hf.")

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        trajectory_id: str,
        images: Sequence[PlacedImage] = (),
    ) -> Generation:
        """Sample one turn after `prompt`, the whole trajectory so far; the engine may have a prefix cached.

        `images` are those of the whole prompt, whose image tokens are already expanded. The engine must not modify
        `prompt`, which may grow after the call has returned. Cancelling the coroutine aborts the request. Raises
        `EngineError`, or `EngineDead` if the engine has died.
        """
        ...

    def release(self, trajectory_id: str) -> None:
        """Free the cache of a finished trajectory. Unknown ids are ignored."""
