"""The tests of `HfEngine` on CUDA."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from agentloop.engines.base import SamplingParams
from agentloop.engines.hf import HfEngine

_FILE = Path(__file__).parents[1] / "agentloop" / "engines" / "test_hf.py"
_spec = importlib.util.spec_from_file_location("agentloop_hf_tests", _FILE)
assert _spec is not None
assert _spec.loader is not None
_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_tests)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", _tests.MODELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_many_requests_agree_with_transformers(kind, dtype):
    model = _tests.model_of(kind).to("cuda", getattr(torch, dtype))
    engine = HfEngine(model, dtype=dtype, seed=0, max_model_len=256, max_slots=8, max_batch_tokens=64)
    await engine.start()
    prompts = _tests.prompts_of(20)
    params = SamplingParams(max_tokens=16, temperature=0.9)
    for _ in range(2):
        for prompt, got in zip(prompts, await _tests.turns(engine, prompts, params), strict=True):
            tokens = torch.tensor([[*prompt, *got.ids]], device="cuda")
            with torch.inference_mode():
                logits = model(tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
            expected = torch.log_softmax(logits / 0.9, -1)[range(16), list(got.ids)].cpu()
            error = np.abs(np.array(got.logprobs) - expected.numpy())
            assert error.mean() < (2e-3 if dtype == "float32" else 0.1)
    await engine.close()


async def test_weights_from_the_device_change_running_turns():
    old, new = _tests.model_of(seed=0).cuda(), _tests.model_of(seed=9).cuda()
    engine = HfEngine(old, dtype="float32", max_model_len=512)
    await engine.start()
    assert engine._device.type == "cuda"
    prompts = _tests.prompts_of(5)
    sampled = _tests.count_tokens(engine)
    running = _tests.asyncio.create_task(_tests.turns(engine, prompts, SamplingParams(max_tokens=300)))
    await _tests.first_token(sampled)
    await engine.update_weights(list(new.named_parameters()), 3)
    for got in await running:
        assert list(got.versions) == sorted(got.versions)
        assert set(got.versions) <= {0, 3}
        assert got.versions[-1] == 3
    await engine.close()
