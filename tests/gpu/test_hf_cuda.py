"""The tests of `HfEngine` on CUDA."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import agentloop.recipes.tiny
from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import SamplingParams
from agentloop.engines.hf.engine import HfEngine
from agentloop.recipes.tiny.task import held_out_rows
from agentloop.rendering import renderer_for
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.tools.toolset import Toolset
from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.run.learners import create
from agentloop.weights.tensors import TensorWeights

_FILE = Path(__file__).parents[1] / "agentloop" / "engines" / "hf" / "test_engine.py"
_spec = importlib.util.spec_from_file_location("agentloop_hf_tests", _FILE)
assert _spec is not None
assert _spec.loader is not None
_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_tests)

pytestmark = pytest.mark.gpu
TRAINED = Path(agentloop.recipes.tiny.__file__).parent / "checkpoint"


def sample_of(prompt, got):
    ids = np.array([*prompt, *got.ids], np.int32)
    mask = np.arange(len(ids)) >= len(prompt)
    logprobs = np.zeros(len(ids), np.float32)
    logprobs[mask] = got.logprobs
    return Sample(ids, mask, logprobs, np.where(mask, 0, -1).astype(np.int32), 1.0)


@pytest.mark.parametrize(("dtype", "on_average", "at_most"), [("float32", 1e-4, 2e-3), ("bfloat16", 2e-3, 0.2)])
async def test_the_learner_computes_what_the_engine_sampled(dtype, on_average, at_most):
    """A trained model: with random weights all logprobs are about the same, and rounding hardly shows."""
    renderer = renderer_for(TRAINED)
    schemas = Toolset([CodeInterpreter()]).schemas
    prompts = [renderer.render_prompt(row["prompt"], schemas) for row in held_out_rows(num_rows=100)]
    engine = HfEngine(TRAINED, device="cuda", dtype=dtype, seed=0, max_model_len=512)
    await engine.start()
    stop = renderer.stop_token_ids
    got = await _tests.turns(engine, prompts, SamplingParams(max_tokens=64, stop_token_ids=stop))
    await engine.close()
    learner = create(LearnerConfig(model=str(TRAINED), device="cuda", compute_dtype=dtype, compile_layers=False))
    samples = [sample_of(prompt, turn) for prompt, turn in zip(prompts, got, strict=True)]
    found = np.concatenate(learner.logprobs(samples))
    error = np.abs(found - np.concatenate([turn.logprobs for turn in got]))
    assert len(error) > 2000
    assert error.mean() < on_average
    assert error.max() < at_most


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
    assert next(engine.model.parameters()).is_cuda
    prompts = _tests.prompts_of(5)
    sampled = _tests.count_tokens(engine)
    running = _tests.asyncio.create_task(_tests.turns(engine, prompts, SamplingParams(max_tokens=300)))
    await _tests.first_token(sampled)
    await engine.update_weights(TensorWeights(list(new.named_parameters())), 3)
    for got in await running:
        assert list(got.versions) == sorted(got.versions)
        assert set(got.versions) <= {0, 3}
        assert got.versions[-1] == 3
    await engine.close()
