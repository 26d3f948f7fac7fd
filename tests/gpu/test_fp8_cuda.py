"""FP8 on CUDA: the learner's products, alone and in compiled layers, and vLLM with weights that each update rounds."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import SamplingParams
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.model import fp8
from agentloop.trainer.model.kernels.fp8_rounding import round_to_fp8
from tests.support.tiny import random_batch, save_small_qwen3

pytestmark = pytest.mark.gpu
_SCALES = ("tensor", "row")


@pytest.mark.parametrize("scales", _SCALES)
@pytest.mark.parametrize("tokens", [4096, 1013])
def test_products_and_gradients_are_near_float32(scales: str, tokens: int):
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 512, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(1024, 512, device="cuda") * 0.05).bfloat16().requires_grad_()
    grad = torch.randn(tokens, 1024, device="cuda").bfloat16()
    out = fp8.linear(hidden, weight, None, by_row=scales == "row")
    found = [out, *torch.autograd.grad(out, (hidden, weight), grad)]
    exact = [tensor.detach().float().requires_grad_() for tensor in (hidden, weight)]
    product = exact[0] @ exact[1].t()
    for got, want in zip(found, [product, *torch.autograd.grad(product, exact, grad.float())], strict=True):
        assert (got.float() - want).norm() < 0.08 * want.norm()


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", [(1, 16), (1013, 272), (4096, 2560)])
def test_the_kernel_rounds_as_plain_torch_does(shape: tuple[int, int], wide: bool, by_row: bool):
    torch.manual_seed(0)
    matrix = torch.randn(shape).bfloat16()
    for plain, transposed in ((True, True), (True, False), (False, True)):
        kind = plain, transposed, by_row, wide
        for found, want in zip(round_to_fp8(matrix.cuda(), *kind), round_to_fp8(matrix, *kind), strict=True):
            assert torch.equal(found.cpu().view(torch.uint8), want.view(torch.uint8))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = save_small_qwen3(tmp_path_factory.mktemp("model"))
    return folder


@pytest.mark.parametrize("scales", _SCALES)
@pytest.mark.parametrize("checkpointing", ["off", "selective", "full"])
def test_compiled_layers_learn_what_bfloat16_does(small: Path, scales: str, checkpointing: str):
    batch = random_batch(24, seed=0, lengths=(4, 300), vocab=512, logprob=-6.2)
    options = {"model": str(small), "device": "cuda", "compute_dtype": "bfloat16", "checkpointing": checkpointing}
    want = FsdpLearner(LearnerConfig(**options)).step(batch)
    got = FsdpLearner(LearnerConfig(**options, fp8=scales)).step(batch)
    assert got["loss"] == pytest.approx(want["loss"], abs=0.03)
    assert got["grad_norm"] == pytest.approx(want["grad_norm"], rel=0.1)
    assert got["loss"] != want["loss"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a model whose shapes the kernels of vLLM take."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=4096, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=1024, initializer_range=0.05,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("large")
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


def _gap(learner: FsdpLearner, samples: list[Sample]) -> float:
    """Return the average difference of the log-probabilities of engine and learner."""
    pairs = zip(learner.logprobs(samples), samples, strict=True)
    return float(np.concatenate([np.abs(own - sample.logprobs[sample.loss_mask]) for own, sample in pairs]).mean())


async def _samples(engine: VllmEngine) -> list[Sample]:
    samples = []
    for start in range(100, 1700, 100):
        prompt = list(range(start, start + 40))
        turn = await engine.generate(prompt, SamplingParams(max_tokens=32), trajectory_id=f"{start}")
        ids = np.array([*prompt, *turn.ids], np.int32)
        mask = np.arange(len(ids)) >= len(prompt)
        logprobs = np.zeros(len(ids), np.float32)
        logprobs[mask] = turn.logprobs
        advantage = 1.0 if start % 200 else -1.0
        samples.append(Sample(ids, mask, logprobs, np.where(mask, 0, -1).astype(np.int32), advantage))
    return samples


async def test_vllm_rounds_the_weights_of_each_update(large: Path):
    settings = {"device": "cuda", "compute_dtype": "bfloat16", "lr": 3e-3, "compile_layers": False}
    learner = FsdpLearner(LearnerConfig(model=str(large), **settings))
    engine = VllmEngine(
        large, quantization="fp8", max_model_len=256, gpu_memory_utilization=0.2, kv_cache_memory_bytes=1 << 30
    )
    await engine.start()
    try:
        before = await _samples(engine)
        gap = _gap(learner, before)
        assert 1e-4 < gap < 0.3, "a random model of this size loses this much to FP8"
        for version in (1, 2, 3):
            learner.step(TrainBatch(before))
            await learner.publish(engine, version)
            assert engine.loads_by == ("loader" if version == 1 else "copies")
            assert _gap(learner, before) > 2 * gap, "the learner has moved"
            assert 1e-4 < _gap(learner, await _samples(engine)) < 1.5 * gap
    finally:
        await engine.close()
