"""Check at load that the layers of a model compute tokens with the experts that are given to them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentloop.errors import UserError
from agentloop.experts import routing
from agentloop.trainer.learner.checks.packing_check import refusing
from agentloop.trainer.learner.checks.probe_conditions import attention_of, probing
from agentloop.trainer.model.packed_lm import PackedCausalLM

_TOKENS = 11


def check(policy: PackedCausalLM) -> None:
    """Give each layer experts that depend on token and layer.

    Raises `UserError` if it uses others, or if no layer has a router.
    """
    model: Any = policy.model
    kind = model.config.model_type
    if not policy.routing.layers:
        raise UserError(
            f"learner.router_replay is true, but {kind} has no experts whose routing transformers exposes. Remove "
            "router_replay, or train another model."
        )
    device = next(model.parameters()).device
    ids = torch.arange(3, 3 + _TOKENS, device=device)[None]
    computed: dict[int, Tensor] = {}
    hooks = [
        block.experts.register_forward_pre_hook(partial(_note, computed, number), with_kwargs=True)  # type: ignore
        for number, block in policy.routing.blocks.items()
    ]
    try:
        with probing(model, policy.layers(), device), refusing(kind), attention_of(model, "eager"):
            model(input_ids=ids, use_cache=False)
            given = {}
            for number, block in policy.routing.blocks.items():
                k = routing.take_choice(block).own.shape[1]
                first = torch.arange(number, number + _TOKENS, device=device)[:, None]
                given[number] = (first + torch.arange(k, device=device)) % routing.num_experts(block)
                routing.set_replayed(block, given[number])
            model(input_ids=ids, use_cache=False)
            for block in policy.routing.blocks.values():
                routing.take_choice(block)
    finally:
        for hook in hooks:
            hook.remove()
    if any(not torch.equal(computed[number].view_as(experts), experts) for number, experts in given.items()):
        raise UserError(
            f"learner.router_replay is true, but {kind} computes tokens with other experts than those given to it. "
            "Remove router_replay, or train another model."
        )


def _note(computed: dict[int, Tensor], number: int, module: nn.Module, args: Any, kwargs: Any) -> None:
    computed[number] = kwargs["top_k_index"] if "top_k_index" in kwargs else args[1]
