"""Parameters of requests, of which vLLM gets a copy for each turn."""

import pytest

from agentloop.engines.base import SamplingParams
from agentloop.engines.vllm.requests import vllm_params

pytestmark = pytest.mark.vllm


def test_turns_that_differ_in_length_and_seed_have_their_own_parameters():
    first = vllm_params(SamplingParams(max_tokens=9, seed=1, stop_token_ids=(7,)), room=100)
    second = vllm_params(SamplingParams(max_tokens=9, seed=2, stop_token_ids=(7,)), room=4)
    unseeded = vllm_params(SamplingParams(max_tokens=9, stop_token_ids=(7,)), room=100)
    warm = vllm_params(SamplingParams(max_tokens=9, temperature=0.5, stop_token_ids=(7,)), room=100)
    assert [(each.max_tokens, each.seed) for each in (first, second, unseeded, warm)] == [
        (9, 1), (4, 2), (9, None), (9, None),
    ]  # fmt: skip
    assert [each.temperature for each in (first, warm)] == [1.0, 0.5]
    assert first.stop_token_ids == second.stop_token_ids == unseeded.stop_token_ids == [7]


def test_a_seed_is_known_to_the_kind_of_sampling():
    seeded = vllm_params(SamplingParams(max_tokens=9, seed=1), room=100)
    unseeded = vllm_params(SamplingParams(max_tokens=9), room=100)
    assert [each.sampling_type.name for each in (seeded, unseeded)] == ["RANDOM_SEED", "RANDOM"]


def test_what_vllm_changes_in_its_copy_does_not_reach_the_next_turn():
    first = vllm_params(SamplingParams(max_tokens=9, seed=1), room=100)
    copied = first.clone()
    copied.max_tokens, copied.seed, copied.temperature = 1, 5, 0.1
    second = vllm_params(SamplingParams(max_tokens=9, seed=1), room=100)
    assert (second.max_tokens, second.seed, second.temperature) == (9, 1, 1.0)
