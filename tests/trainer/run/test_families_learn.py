"""Models of 2026 are trained from random weights: rewards rise, and engine and learner compute the same."""

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.trainer.run.train import train
from tests.support.small_models import small_config

pytestmark = pytest.mark.slow

_EVEN = '''
from agentloop import Tool, ToolContext


class Even(Tool):
    """Even."""

    async def call(self, ctx: ToolContext) -> str:
        return ""


def reward(trajectory, task) -> float:
    """Return the share of sampled tokens with an even id."""
    ids = [token for token, mask in zip(trajectory.token_ids, trajectory.loss_mask) if mask]
    return sum(token % 2 == 0 for token in ids) / len(ids)
'''


def _model(family: str, folder: Path, width: int, sizes: dict[str, int]) -> Path:
    """Write random weights of a family, with the tokenizer of the recipe tiny."""
    with as_file(files("agentloop.recipes.tiny") / "checkpoint") as tiny:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copy(tiny / name, folder / name)
        known = AutoConfig.from_pretrained(tiny)
    config = small_config(family, width=width, **sizes)
    text = config.get_text_config()
    text.vocab_size, text.max_position_embeddings, text.eos_token_id = known.vocab_size, 256, known.eos_token_id
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


async def _trained(
    folder: Path, family: str, engine: str, *, width: int = 1, dtype: str = "float32", **sizes: int
) -> list[dict[str, Any]]:
    """Train a small model with tools, and return the metrics of its steps."""
    model = _model(family, folder / "model", width, sizes)
    (folder / "even.py").write_text(_EVEN)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{i} {i}"}) + "\n" for i in range(8)))
    options = {"hf": "device: cpu", "vllm": "max_model_len: 256"}[engine]
    replays = family == "qwen3_moe" and engine == "hf"
    (folder / "config.yaml").write_text(
        f"""
model: {model}
data: {{train: ./rows.jsonl}}
env: {{tools: ["./even.py:Even"], reward: "./even.py:reward"}}
limits: {{max_turns: 1, max_turn_tokens: 4, max_tokens: 250}}
engine: {{name: {engine}, options: {{{options}, dtype: {dtype}}}}}
algorithm: {{group_size: 8, groups_per_step: 4}}
learner: {{device: cpu, lr: {2e-2 / width}, compute_dtype: float32, router_replay: {str(replays).lower()}}}
eval: {{every: 0}}
run: {{steps: 14, loggers: []}}
"""
    )
    run = await train(load_config(RunConfig, folder / "config.yaml"), folder / "run")
    return run.read_metrics()


def _assert_learned(metrics: list[dict[str, Any]]) -> None:
    rewards = [line["reward/mean"] for line in metrics]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1, rewards


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_moe", "gpt_oss"])
async def test_a_small_model_learns(family: str, tmp_path: Path):
    metrics = await _trained(tmp_path, family, "hf")
    assert max(line["learner/logprob_diff_max"] for line in metrics) < 1e-3
    if family == "qwen3_moe":
        assert max(line["learner/experts/changed"] for line in metrics) < 0.01
    _assert_learned(metrics)


@pytest.mark.ecosystem
@pytest.mark.vllm
async def test_a_small_mixture_of_experts_learns_through_vllm(tmp_path: Path):
    metrics = await _trained(tmp_path, "qwen3_moe", "vllm", width=4)
    assert max(line["learner/logprob_diff_max"] for line in metrics) < 1e-3
    _assert_learned(metrics)


@pytest.mark.ecosystem
@pytest.mark.vllm
async def test_a_small_hybrid_learns_through_vllm(tmp_path: Path):
    heads = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}  # vLLM for CPU takes heads of 128
    metrics = await _trained(tmp_path, "qwen3_5_text", "vllm", width=4, dtype="bfloat16", **heads)
    assert max(line["learner/logprob_diff"] for line in metrics) < 0.1
    _assert_learned(metrics)
