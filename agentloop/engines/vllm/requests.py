"""Convert `SamplingParams` to vLLM's, and vLLM's outputs to `Generation`."""

from __future__ import annotations

from array import array
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np

from agentloop.engines.base import FinishReason, Generation, SamplingParams
from agentloop.errors import EngineError
from agentloop.types.routed_experts import RoutedExperts

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


def vllm_params(params: SamplingParams, room: int, *, in_parts: bool = False) -> Any:
    """Convert to vLLM's parameters, for at most `room` tokens. `in_parts`: return all tokens so far after each step.

    vLLM's constructor checks each field, which takes as long as an agent loop needs for the rest of a short turn. So
    turns that differ in length and seed alone are copies of one object.
    """
    key = params.temperature, params.top_p, params.top_k, params.stop_token_ids, params.stop_strings
    is_seeded = params.seed is not None
    if params.grammar is not None:
        built = _build_params(*key, params.routed_from, in_parts, is_seeded, params.grammar.text)
    else:
        built = copy(_cached_params(*key, params.routed_from, in_parts, is_seeded, None))
    built.max_tokens = min(params.max_tokens, room)
    built.seed = params.seed
    return built


def _build_params(
    temperature: float,
    top_p: float,
    top_k: int,
    stop_token_ids: tuple[int, ...],
    stop_strings: tuple[str, ...],
    routed_from: int,
    in_parts: bool,
    is_seeded: bool,
    grammar: str | None,
) -> Any:
    """Return parameters whose length and seed are to be set."""
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
    from vllm.sampling_params import SamplingParams as VllmParams

    return VllmParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=0 if is_seeded else None,  # vLLM derives other fields from it
        stop_token_ids=list(stop_token_ids),
        ignore_eos=True,  # only the given stop tokens end the turn
        logprobs=0,  # of the sampled token only
        flat_logprobs=True,
        stop=list(stop_strings),
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        detokenize=bool(stop_strings),
        routed_experts_prompt_start=routed_from,
        structured_outputs=None if grammar is None else StructuredOutputsParams(structural_tag=grammar),
        output_kind=RequestOutputKind.CUMULATIVE if in_parts else RequestOutputKind.FINAL_ONLY,
        skip_clone=True,  # vLLM's own copy of a request need not be a deep one: nothing else uses this object
    )


_cached_params = lru_cache(maxsize=64)(_build_params)


def generation_of(output: Any, marks: list[tuple[int, int]], routed_from: int = 0) -> Generation:
    """Convert a finished request; `marks` as in `versions_of`. Raises `EngineError` if vLLM gave up the request.

    If vLLM returns routed experts, they belong to the tokens from `routed_from` on.
    """
    sampled = output.outputs[0]
    reason = _FINISH.get(sampled.finish_reason)
    if reason is None:
        raise EngineError(f"vLLM ended the request with {sampled.finish_reason!r}")
    ids = array("i", sampled.token_ids)
    logprobs = array("f", sampled.logprobs.logprobs if ids else ())
    experts = sampled.routed_experts  # uint8 or uint16 [num_tokens, decoder layers, k]
    routed = None if experts is None else RoutedExperts(routed_from, experts.astype(np.int16))
    return Generation(ids, logprobs, versions_of(marks, len(ids)), reason, routed=routed)


def versions_of(marks: list[tuple[int, int]], num_tokens: int) -> array[int]:
    """Return the version of each token; `marks` are (index of a token, version that samples from there on)."""
    versions = array("i", [marks[0][1]]) * num_tokens
    for start, version in marks[1:]:
        versions[start:] = array("i", [version]) * (num_tokens - start)
    return versions
