"""vLLM returns the experts of every token that it computed, aligned over turns."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.engines.base import SamplingParams
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.experts import routing
from agentloop.types.trajectory import SegmentKind, Trajectory
from tests.support.small_models import save_small_model

pytestmark = pytest.mark.gpu


async def test_vllm_returns_the_experts_of_every_token(tmp_path: Path):
    folder = save_small_model("qwen3_moe", tmp_path, width=8)  # heads of 64
    memory = {"gpu_memory_utilization": 0.3, "kv_cache_memory_bytes": 1 << 30}
    engine = VllmEngine(folder, enable_return_routed_experts=True, dtype="float32", max_model_len=120, **memory)
    await engine.start()
    trajectory = Trajectory(trajectory_id="t")
    for kind, prompt in ((SegmentKind.PROMPT, range(3, 43)), (SegmentKind.OBSERVATION, [50, 7, 8])):
        trajectory.append(kind, prompt)
        params = SamplingParams(max_tokens=6, seed=0, routed_from=trajectory.num_routed)
        turn = await engine.generate(trajectory.ids, params, trajectory_id="t")
        trajectory.append(SegmentKind.SAMPLED, turn.ids, logprobs=turn.logprobs, versions=turn.versions)
        trajectory.add_routed(turn.routed)
    await engine.close()
    assert trajectory.routed is not None
    assert trajectory.num_routed == len(trajectory) - 1
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    blocks = routing.prepare(model)
    with torch.no_grad():
        model(input_ids=torch.tensor([list(trajectory.ids)]), use_cache=False)
    expected = np.stack([routing.take_choice(blocks[n]).used.numpy() for n in sorted(blocks)], axis=1)[:-1]
    differs = np.sort(trajectory.routed.experts, axis=2) != np.sort(expected, axis=2)
    assert differs.mean() < 0.02
