"""The hf engine tells which experts computed each token, also for prefixes that it does not compute again."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.engines.base import SamplingParams
from agentloop.engines.hf.engine import HfEngine
from agentloop.errors import UserError
from agentloop.experts import routing
from agentloop.types.trajectory import SegmentKind, Trajectory
from agentloop.weights.tensors import TensorWeights
from tests.support.small_models import save_small_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model("qwen3_moe", tmp_path_factory.mktemp("moe"))


def _experts(folder: Path, ids: list[int]) -> np.ndarray:
    """Return the experts of a plain forward, [tokens, layers, k], each token's in ascending order."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    blocks = routing.prepare(model)
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]), use_cache=False)
    return np.sort(np.stack([routing.take_choice(blocks[n]).used.numpy() for n in sorted(blocks)], axis=1), axis=2)


async def _turn(engine: HfEngine, trajectory: Trajectory, prompt: list[int], seed: int, count: int = 6) -> None:
    kind = SegmentKind.OBSERVATION if len(trajectory) else SegmentKind.PROMPT
    trajectory.append(kind, prompt)
    params = SamplingParams(max_tokens=count, seed=seed, routed_from=trajectory.num_routed)
    turn = await engine.generate(trajectory.ids, params, trajectory_id=trajectory.trajectory_id)
    trajectory.append(SegmentKind.SAMPLED, turn.ids, logprobs=turn.logprobs, versions=turn.versions)
    trajectory.add_routed(turn.routed)


async def test_turns_of_a_group_have_the_experts_of_a_plain_forward(folder: Path):
    engine = HfEngine(folder, device="cpu", max_model_len=120, routed_experts=True, max_batch_tokens=16)
    await engine.start()
    prompt = list(range(3, 43))
    trajectories = [Trajectory(trajectory_id=f"{n}") for n in range(4)]
    await asyncio.gather(*(_turn(engine, one, prompt, seed) for seed, one in enumerate(trajectories)))
    await asyncio.gather(*(_turn(engine, one, [50 + seed, 7, 8], 9) for seed, one in enumerate(trajectories)))
    await engine.close()
    for one in trajectories:
        assert one.num_routed == len(one) - 1 == 54
        assert one.routed is not None
        found = np.sort(one.routed.experts, axis=2)
        np.testing.assert_array_equal(found, _experts(folder, list(one.ids))[:-1])


async def test_sampled_tokens_keep_their_experts_when_their_cache_is_computed_again(folder: Path):
    engine = HfEngine(folder, device="cpu", max_model_len=120, routed_experts=True)
    await engine.start()
    one = Trajectory(trajectory_id="one")
    await _turn(engine, one, list(range(3, 23)), seed=0)
    assert one.routed is not None
    before = one.routed.experts.copy()
    torch.manual_seed(1)
    weights = {name: torch.randn_like(tensor) for name, tensor in engine.model.state_dict().items()}
    await engine.update_weights(TensorWeights(weights.items()), 1)
    await _turn(engine, one, [5, 6], seed=1)
    assert one.num_routed == len(one) - 1
    np.testing.assert_array_equal(one.routed.experts[: len(before)], before)
    again = Trajectory(trajectory_id="again")
    await _turn(engine, again, list(one.ids), seed=2, count=1)
    assert again.routed is not None
    assert (again.routed.experts[: len(before)] != before).any()
    await engine.close()


async def test_without_the_option_and_without_experts(folder: Path, tmp_path: Path):
    engine = HfEngine(folder, device="cpu", max_model_len=60)
    await engine.start()
    assert (await engine.generate([5, 6, 7], SamplingParams(max_tokens=2), trajectory_id="")).routed is None
    await engine.close()
    with pytest.raises(UserError, match="cannot return routed experts of Qwen3ForCausalLM"):
        await HfEngine(save_small_model("qwen3", tmp_path), device="cpu", routed_experts=True).start()
