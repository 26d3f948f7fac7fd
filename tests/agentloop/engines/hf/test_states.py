"""Hybrid models and attention sinks in the hf engine, against transformers itself."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.engines.base import SamplingParams
from agentloop.engines.hf.engine import HfEngine
from agentloop.weights.tensors import TensorWeights
from tests.support.small_models import save_small_model

pytestmark = pytest.mark.slow

FAMILIES = ("qwen3_5_text", "qwen3_next", "lfm2", "falcon_h1", "nemotron_h", "granitemoehybrid", "gpt_oss")
PARAMS = SamplingParams(max_tokens=9)


@pytest.fixture(params=FAMILIES)
def folder(request, tmp_path):
    return save_small_model(request.param, tmp_path)


def expected(model, prompt, ids):
    """Return the log-probabilities of `ids` after `prompt`, by one plain forward pass."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1)[range(len(ids)), list(ids)]


async def test_turns_of_many_trajectories_have_the_logprobs_of_transformers(folder):
    """More trajectories than slots, prompts in chunks, a common prompt, later turns and another history."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    engine = HfEngine(folder, device="cpu", seed=0, max_model_len=120, max_slots=3, max_batch_tokens=16)
    await engine.start()
    rng = np.random.default_rng(3)
    start = rng.integers(3, 120, 21).tolist()
    prompts = [[*start, *rng.integers(3, 120, size).tolist()] for size in (1, 4, 4, 9, 17)]
    prompts.append(list(prompts[1]))
    for turn in range(3):
        rows = enumerate(prompts)
        got = await asyncio.gather(*(engine.generate(row, PARAMS, trajectory_id=f"{i}") for i, row in rows))
        for prompt, generation in zip(prompts, got, strict=True):
            want = expected(model, prompt, generation.ids)
            np.testing.assert_allclose(generation.logprobs, want, atol=1e-3)
        prompts = [[*prompt, *generation.ids, 7, 8] for prompt, generation in zip(prompts, got, strict=True)]
        if turn == 1:
            prompts[0] = prompts[0][:30]  # a branch that begins inside of what is computed
    await engine.close()


async def test_a_turn_after_new_weights_keeps_no_old_state(tmp_path):
    folder = save_small_model("qwen3_5_text", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    engine = HfEngine(folder, device="cpu", seed=0, max_model_len=120)
    await engine.start()
    prompt = list(range(5, 30))
    first = await engine.generate(prompt, PARAMS, trajectory_id="a")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 1)
    longer = [*prompt, *first.ids]
    second = await engine.generate(longer, PARAMS, trajectory_id="a")
    np.testing.assert_allclose(second.logprobs, expected(model, longer, second.ids), atol=2e-4)
    await engine.sleep()
    await engine.wake()
    third = await engine.generate(longer, PARAMS, trajectory_id="a")
    np.testing.assert_allclose(third.logprobs, expected(model, longer, third.ids), atol=2e-4)
    await engine.close()
