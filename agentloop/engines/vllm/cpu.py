"""Correct what vLLM computes differently on CPUs: seeded turns, rotary embeddings, biased routers, packed weights.

vLLM samples a token for each unfinished chunk of a prompt, discards it, and rewinds the generator by one draw. Only
generators of CUDA can do this, so those of CPUs are replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class _Rewinding(torch.Generator):
    """A generator of the CPU that can return to its state before the last draw."""

    def mark(self) -> None:
        self._before = self.get_state()

    def get_offset(self) -> int:
        return 4  # vLLM sets the offset to this minus 4, the size of one draw on CUDA

    def set_offset(self, offset: int) -> torch.Generator:
        assert offset == 0
        return self.set_state(self._before)


def let_generators_rewind(runner: Any) -> None:
    """Replace the generators of vLLM's model runner, those of requests with a seed, before they are used."""

    def prepare(*_: Any) -> None:
        batch = runner.input_batch
        for index, generator in list(batch.generators.items()):
            if not isinstance(generator, _Rewinding):
                new = _Rewinding()
                new.set_state(generator.get_state())
                batch.generators[index] = runner.requests[batch.req_ids[index]].generator = generator = new
            generator.mark()

    runner.sampler.register_forward_pre_hook(prepare)


def count_ranks_without_compiling() -> None:
    """Count the ranks of sampled tokens, which nothing reads, by plain torch.

    vLLM compiles this for each engine, which needs a C++ compiler and makes the first turn wait for seconds.
    """
    from vllm.v1.sample import sampler

    names, name = vars(sampler), "batched_count_greater_than"
    if name in names:
        names[name] = inspect.unwrap(names[name])


def correct_rotary_embeddings(model: nn.Module) -> None:
    """Use plain torch if queries have a dimension for heads: vLLM's kernel then rotates wrong features.

    The models of LFM2, and those with latent attention such as DeepSeek's, call it with [tokens, heads, head_dim].
    """
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    for layer in model.modules():
        if isinstance(layer, RotaryEmbedding) and type(layer).forward_cpu is RotaryEmbedding.forward_cpu:
            vars(layer)["_forward_method"] = _rotation(layer)


def _rotation(layer: Any) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def rotate(positions: Tensor, query: Tensor, key: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        forward = layer.forward_cpu if query.dim() == 2 else layer.forward_native
        rotated: tuple[Tensor, Tensor | None] = forward(positions, query, key)
        return rotated

    return rotate


def correct_routers(model: nn.Module) -> None:
    """Apply the correction bias of routers without groups: vLLM ignores it on CPUs, and has only softmax scores.

    Ernie 4.5 has softmax scores with a bias, MiniMax M2 sigmoid scores.
    """
    for layer in model.modules():
        router: Any = getattr(layer, "router", None)
        if (
            type(router).__name__ == "CPURouter"  # vLLM 0.28 has no such class
            and router.custom_routing_function is None
            and router.e_score_correction_bias is not None
            and not router.use_grouped_topk
            and router.scoring_func in _SCORES
        ):
            router.custom_routing_function = _biased_top_k(router)


_SCORES: dict[str, Callable[[Tensor], Tensor]] = {"softmax": lambda x: x.softmax(dim=-1), "sigmoid": torch.sigmoid}


def _biased_top_k(router: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a function that finds weights and numbers of the experts with the highest biased scores.

    The bias chooses the experts; the weights are scores without it (DeepSeek-V3, arXiv 2412.19437).
    """

    def biased_top_k(
        *, hidden_states: Tensor, gating_output: Tensor, topk: int, renormalize: bool
    ) -> tuple[Tensor, Tensor]:
        scores = _SCORES[router.scoring_func](gating_output.float())
        experts = (scores + router.e_score_correction_bias).topk(topk, dim=-1).indices
        weights = scores.gather(1, experts)
        if renormalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights * router.routed_scaling_factor, experts

    return biased_top_k


def pack_experts_again(model: nn.Module) -> None:
    """Let the next reload pack the weights of experts for CPU kernels, which vLLM does only with a new kernel."""
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            vars(method)["moe_kernel"] = None
