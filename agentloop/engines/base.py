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
    """The engine sampled a stop token, or the text contains a stop string; that token is the last of the ids."""
    LENGTH = "length"
    """The turn was cut: it reached `max_tokens` or the engine's context length."""
    ABORT = "abort"
    """The engine was closed, or aborted the turn."""


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
    """Seed of this turn: with the same weights an engine samples the same tokens, as far as its kernels allow."""
    grammar: Grammar | None = None
    """Form of this turn. A turn that is interrupted begins again, because its grammar begins at its first token."""
    routed_from: int = 0
    """First token of the prompt whose experts are returned, by an engine that returns routed experts."""


@dataclass(slots=True, frozen=True)
class Generation:
    """One sampled turn. The three arrays have one entry a token."""

    ids: array[int]
    """Typecode i."""
    logprobs: array[float]
    """Typecode f. Log-probability of each sampled id at the sampling temperature, among the tokens that top_p and top_k
    leave (sglang: among all tokens, `EngineKind.reports_cut`), and among those that the grammar allows."""
    versions: array[int]
    """Typecode i; the policy version that sampled each id."""
    finish_reason: FinishReason
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further figures of this turn, such as the tokens that a service bills; an episode has their sums."""
    routed: RoutedExperts | None = None
    """Experts of prompt and turn from `SamplingParams.routed_from` on; None if the engine does not return them."""

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.logprobs) == len(self.versions)


class EngineDead(EngineError):
    """The engine has ended and answers nothing any more; a new one may continue the turn."""

    def __init__(self, message: str, sampled: Generation | None = None) -> None:
        super().__init__(message)
        self.sampled = sampled
        """Tokens of the turn sampled before that, as far as they are known."""


class ContextExceeded(EngineError):
    """The prompt leaves no room to sample in the model's context, as the engine found out itself."""


class TakesWeights(Protocol):
    """An engine, or several engines that are updated as one."""

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        """Take new weights under Hugging Face names.

        Requests in flight stay in flight: a running engine pauses, loads and resumes, and later tokens carry `version`.
        A sleeping engine takes memory for its weights only, and sleeps on.
        """


class EngineControl(TakesWeights, Protocol):
    """The methods by which a run steers an engine, or all of its workers."""

    async def pause(self) -> None:
        """Stop sampling, keep the requests and their caches. Return when no token is being computed any more."""

    async def resume(self) -> None:
        """Continue sampling."""

    async def sleep(self, *, keep_weights: bool = True) -> None:
        """Give the GPU memory of caches and weights back. Turns wait, running and new ones, as in a pause.

        Without `keep_weights` the weights are discarded: `update_weights` has to come before `wake`. It may come in
        any case. Raises `EngineDead` if the engine cannot sleep any more.
        """

    async def wake(self) -> None:
        """Take the memory back and continue, unless a pause began meanwhile.

        Raises `EngineDead` if that fails. An engine that does not sleep stays as it is.
        """

    async def close(self) -> None:
        """End the requests in flight with `FinishReason.ABORT`. A second call does nothing."""


class Engine(EngineControl, Protocol):
    """Generates turns for many trajectories at once. All methods belong to one event loop.

    Derive an engine from this class: it then has `release`, `cache_tokens` and `restart_counts`.
    """

    policy_version: int
    """Version of the weights that sample the next token."""
    max_model_len: int
    """Longest prompt plus answer, in tokens."""

    @property
    def cache_tokens(self) -> int | None:
        """Tokens that the cache of keys and values holds; None if unknown."""
        return None

    @property
    def restart_counts(self) -> Mapping[str, int]:
        """Number of restarts so far, by kind of failure."""
        return {}

    async def start(self) -> None:
        """Load the model and warm up. Raises `UserError` if the model or the hardware cannot be used."""

    async def check_grammar(self, grammar: Grammar) -> None:
        """Compile a grammar for later turns. Raises `UserError` if this engine cannot sample with it."""
        raise UserError("This engine cannot constrain turns. Use one of the engines hf, vllm and sglang.")

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        trajectory_id: str,
        images: Sequence[PlacedImage] = (),
    ) -> Generation:
        """Sample one turn after `prompt`: the whole trajectory so far, of which the engine may have a part cached.

        `images` are those of the whole prompt, which already has all tokens of each: nothing is expanded here.
        `prompt` may grow after the call returned and must not be written to. Cancelling the coroutine aborts the
        request. Raises `EngineError`, or `EngineDead` if the engine itself has ended.
        """
        ...

    def release(self, trajectory_id: str) -> None:
        """Let the cache of a trajectory go that has ended. Unknown ids are ignored."""
