"""Routers tell which experts they choose, and use those of another computation instead."""

from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.errors import UserError
from agentloop.experts import routing
from tests.support.small_models import FAMILIES, NOT_BUILT, small_config

_IDS = torch.arange(5, 12)[None]
NOT_SHOWN = {
    "dbrx": "its experts are matrices of its own",
    "deepseek_v4": "its first layers choose experts by a table of token ids",
    "jetmoe": "its experts are matrices of its own",
    "llama4": "its experts are matrices of its own",
    "llama4_text": "its experts are matrices of its own",
    "longcat_flash": "its experts are matrices of its own",
    "phimoe": "its router takes the best score twice instead of the two best",
    "zaya": "its router takes the best score by argmax",
}
"""Families with experts whose choice is not seen, and why."""


def _model(family: str):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(small_config(family)).eval()


def _note(computed: dict[int, torch.Tensor], number: int, module: object, args, kwargs) -> None:
    computed[number] = (*args, *kwargs.values())[1]


def _has_experts(family: str) -> bool:
    return family not in NOT_BUILT and "expert" in str(small_config(family).to_dict())


@pytest.mark.slow
def test_every_family_with_experts_replays_them_or_is_known_not_to():
    hidden = set()
    for family in filter(_has_experts, FAMILIES):
        model = _model(family)
        blocks = routing.prepare(model)
        if not blocks:
            if any("Experts" in type(module).__name__ or "MoE" in type(module).__name__ for module in model.modules()):
                hidden.add(family)
            continue
        computed: dict[int, torch.Tensor] = {}
        for number, block in blocks.items():
            block.experts.register_forward_pre_hook(partial(_note, computed, number), with_kwargs=True)
        try:
            model(input_ids=_IDS, use_cache=False)
            free = {number: routing.take_choice(block) for number, block in blocks.items()}
        except UserError:
            hidden.add(family)
            continue
        given = {}
        for number, block in blocks.items():
            assert torch.equal(free[number].own, free[number].used)
            k = free[number].own.shape[1]
            given[number] = (_IDS[0, :, None] + torch.arange(k) + number) % routing.num_experts(block)
            routing.set_replayed(block, given[number])
        model(input_ids=_IDS, use_cache=False)
        for number, block in blocks.items():
            assert torch.equal(routing.take_choice(block).used, given[number]), family
            assert torch.equal(computed[number].view_as(given[number]), given[number]), family
    assert hidden - set(NOT_SHOWN) == set()


def test_the_gate_weights_of_replayed_experts_are_those_of_the_router():
    model = _model("qwen3_moe")
    block = routing.prepare(model)[0]
    hidden = torch.randn(1, 5, 32)
    experts = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [-1, -1]])
    routing.set_replayed(block, experts)
    _, weights, chosen = type(block.gate).forward(block.gate, hidden)  # outside of the block nothing is replayed
    routing.set_replayed(block, experts)
    seen = []
    block.experts.register_forward_pre_hook(lambda _, args: seen.append(args))
    block(hidden)
    assert torch.equal(seen[0][1][:4], experts[:4])
    assert torch.equal(seen[0][1][4], chosen[4])
    probabilities = (hidden[0] @ block.gate.weight.T).softmax(-1)
    expected = probabilities.gather(1, seen[0][1])
    expected = expected / expected.sum(-1, keepdim=True) if block.gate.norm_topk_prob else expected
    torch.testing.assert_close(seen[0][2], expected)
    torch.testing.assert_close(seen[0][2][4], weights[4])


def test_the_router_learns_from_replayed_experts():
    block = routing.prepare(_model("qwen3_moe"))[0]
    routing.set_replayed(block, torch.tensor([[0, 1]] * 5))
    block(torch.randn(1, 5, 32)).square().sum().backward()
    assert block.gate.weight.grad[:2].abs().min() > 0


def test_preparing_a_model_twice_observes_it_once():
    model = _model("qwen3_moe")
    first, second = routing.prepare(model), routing.prepare(model)
    assert first == second
    model(input_ids=_IDS, use_cache=False)
    assert routing.take_choice(first[0]).own.shape == (7, 2)
