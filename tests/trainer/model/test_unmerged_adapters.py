"""`learner.lora.publish=adapters`: vLLM gets the adapters alone, and samples from the learner's policy."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import Generation, SamplingParams
from agentloop.engines.vllm.adapters import check_shapes, start_arguments
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.errors import EngineError, UserError
from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.weights.tensors import TensorWeights
from tests.support.tiny import random_batch, save_tiny_qwen3

PROMPT = [5, 9, 33, 7]


def learner_of(model: Path, publish: str) -> FsdpLearner:
    lora = {"rank": 4, "alpha": 8, "publish": publish}
    return FsdpLearner(LearnerConfig(model=str(model), lora=lora, lr=3e-2, device="cpu"))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}
    return save_tiny_qwen3(tmp_path_factory.mktemp("model"), max_position_embeddings=512, **heads)


def test_published_adapters_are_those_that_merging_adds_and_far_fewer_bytes(model: Path):
    learners = [learner_of(model, publish) for publish in ("merged", "adapters")]
    for learner in learners:
        learner.step(random_batch(6))
    merged, adapters = ({name: weight.clone() for name, weight in learner.weights()} for learner in learners)
    base = dict(learner_of(model, "merged").weights())
    assert len(adapters) == 2 * 2 * 7  # two matrices for each of seven layers of two blocks
    for name in {name.rpartition(".")[0] for name in adapters}:
        change = adapters[f"{name}.lora_b"] @ adapters[f"{name}.lora_a"]
        np.testing.assert_allclose(merged[f"{name}.weight"] - base[f"{name}.weight"], change, atol=1e-6)
        assert change.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"a.lora_a": (2, 8), "a.lora_b": (6, 2)}, ""),
        ({"b.lora_a": (2, 8), "b.lora_b": (6, 2)}, "an adapter for b, which the engine's model does not have"),
        ({"a.lora_a": (2, 8)}, r"the adapter of a has the shapes \(2, 8\) and \(\), for a weight of shape \(6, 8\)"),
        ({"a.lora_a": (2, 8), "a.lora_b": (8, 2)}, "the adapter of a has the shapes"),
    ],
)
def test_adapters_that_do_not_fit_the_model_are_refused(shapes: dict[str, tuple[int, ...]], message: str):
    if not message:
        check_shapes(shapes, {"a.weight": (6, 8)})
        return
    with pytest.raises(EngineError, match=message):
        check_shapes(shapes, {"a.weight": (6, 8)})


def test_vllm_pads_ranks_and_refuses_large_ones():
    assert start_arguments(20)["max_lora_rank"] == 32
    sizes = {"cudagraph_capture_sizes": [1, 8]}
    assert start_arguments(8, sizes)["compilation_config"] == {"cudagraph_specialize_lora": False, **sizes}
    with pytest.raises(UserError, match="rank is 600, and vLLM takes adapters of rank 512 at most"):
        start_arguments(600)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Path):
    engine = VllmEngine(model, dtype="float32", max_model_len=512, max_num_seqs=8, adapters=4)
    await engine.start()
    yield engine
    await engine.close()


async def sampled(engine: VllmEngine, name: str, count: int) -> Generation:
    params = SamplingParams(max_tokens=count, seed=3)
    return await engine.generate(PROMPT, params, trajectory_id=name)


def gap(learner: FsdpLearner, turn: Generation) -> float:
    """Return the largest difference between the log-probabilities of engine and learner on one token."""
    ids = np.array([*PROMPT, *turn.ids], np.int32)
    mask = np.arange(len(ids)) >= len(PROMPT)
    zeros = np.zeros(len(ids), np.float32)
    (logprobs,) = learner.logprobs([Sample(ids, mask, zeros, zeros.astype(np.int32))])
    return float(np.abs(logprobs - np.array(turn.logprobs)).max())


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="module")
async def test_turns_have_the_learners_logprobs_after_updates_in_flight(engine: VllmEngine, model: Path):
    learner = learner_of(model, "adapters")
    assert gap(learner, await sampled(engine, "first", 40)) < 1e-3
    for version in (1, 2):
        running = asyncio.create_task(sampled(engine, f"running {version}", 500))
        await sampled(engine, f"short {version}", 2)
        old = await sampled(engine, f"old {version}", 40)
        learner.step(random_batch(6, seed=version))
        await learner.publish(engine, version)
        assert gap(learner, old) > 1e-2
        new = await sampled(engine, f"new {version}", 40)
        assert set(new.versions) == {version}
        assert gap(learner, new) < 1e-3
        assert {version - 1, version} >= set((await running).versions)
    assert engine.loads_by == "adapters"


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="module")
async def test_merged_weights_are_refused_and_the_adapters_stay(engine: VllmEngine, model: Path):
    before = await sampled(engine, "before", 20)
    with pytest.raises(EngineError, match="the engine takes adapters"):
        await engine.update_weights(TensorWeights(learner_of(model, "merged").weights()), 9)
    assert list((await sampled(engine, "after", 20)).ids) == list(before.ids)
