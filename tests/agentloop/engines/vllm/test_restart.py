"""A real vLLM whose engine core is killed while it samples: the turn goes on from its token prefix."""

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from agentloop.engines.base import FinishReason, SamplingParams
from agentloop.engines.restarting import RestartingEngine
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.registry.named_objects import load_object
from agentloop.weights.tensors import TensorWeights

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

_HELPERS = Path(__file__).parent / "test_engine.py"
random_model = load_object(f"{_HELPERS}:random_model", "helper")
reference = load_object(f"{_HELPERS}:reference", "helper")

PROMPT = [5, 6, 7]
NUM_TOKENS = 400


def engine_core():
    (core,) = [child for child in psutil.Process().children(recursive=True) if "EngineCore" in child.name()]
    return core


async def test_killed_engine_core_loses_no_tokens_or_versions(tmp_path):
    """The head of the model is tied and follows the embedding in every update."""
    model, other = random_model(tied=True), random_model(1, tied=True)
    model.save_pretrained(tmp_path)

    made = []

    def make():
        made.append(VllmEngine(tmp_path, dtype="float32", max_model_len=512, enforce_eager=True, max_num_seqs=4))
        return made[-1]

    def states():
        running = made[0].llm.output_processor.request_states.values()
        return {state.external_req_id: state for state in running}

    engine = RestartingEngine(make)
    await engine.start()
    try:
        assert engine.cache_tokens > 512
        torch.manual_seed(1)
        with torch.no_grad():
            model.lm_head.weight.add_(torch.randn_like(model.lm_head.weight) * 0.2)
        for version, weights in ((2, other), (3, model)):
            await engine.update_weights(TensorWeights(list(weights.named_parameters())), version)
        params = SamplingParams(max_tokens=NUM_TOKENS, seed=1)
        turns = [asyncio.create_task(engine.generate(PROMPT, params, trajectory_id=name)) for name in "ab"]
        while [state.detokenizer.num_output_tokens() > 20 for state in states().values()] != [True, True]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        known = {name.split("-")[0]: list(state.detokenizer.output_token_ids) for name, state in states().items()}
        os.kill(engine_core().pid, signal.SIGKILL)
        turns = await asyncio.gather(*turns)
        assert engine.restart_counts == {"died": 1}
        for name, turn in zip("ab", turns, strict=True):
            ids = list(turn.ids)
            assert len(ids) == NUM_TOKENS
            assert turn.finish_reason is FinishReason.LENGTH
            assert ids[: len(known[name])] == known[name], "what was sampled before the death is kept"
            assert set(turn.versions) == {3}
            expected = reference(model, PROMPT, ids)[torch.arange(len(ids)), torch.tensor(ids)]
            # Both halves were sampled with the weights of the update, the second one by the new engine.
            np.testing.assert_allclose(np.array(turn.logprobs), expected.numpy(), atol=5e-3)
    finally:
        await engine.close()
