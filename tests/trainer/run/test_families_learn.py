"""Models of 2026 are trained from random weights through the hf engine: rewards rise, and both see the same model."""

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.trainer.run.train import train
from tests.support.small_models import small_config

pytestmark = pytest.mark.slow

_REWARD = '''
def reward(trajectory, task) -> float:
    """Return the share of sampled tokens with an even id."""
    ids = [token for token, mask in zip(trajectory.token_ids, trajectory.loss_mask) if mask]
    return sum(token % 2 == 0 for token in ids) / len(ids)
'''


def _model(family: str, folder: Path) -> Path:
    """Write random weights of a family, with the tokenizer of the recipe tiny."""
    with as_file(files("agentloop.recipes.tiny") / "checkpoint") as tiny:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copy(tiny / name, folder / name)
        known = AutoConfig.from_pretrained(tiny)
    config = small_config(family)
    text = config.get_text_config()
    text.vocab_size, text.max_position_embeddings, text.eos_token_id = known.vocab_size, 256, known.eos_token_id
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_moe", "gpt_oss"])
async def test_a_small_model_learns(family: str, tmp_path: Path):
    model = _model(family, tmp_path / "model")
    (tmp_path / "reward.py").write_text(_REWARD)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{i} {i}"}) + "\n" for i in range(8)))
    (tmp_path / "config.yaml").write_text(
        f"""
model: {model}
data: {{train: ./rows.jsonl}}
env: {{tools: [code_interpreter], reward: "./reward.py:reward"}}
limits: {{max_turns: 1, max_turn_tokens: 4, max_tokens: 250}}
engine: {{name: hf, options: {{device: cpu, dtype: float32}}}}
algorithm: {{group_size: 8, groups_per_step: 8}}
learner: {{device: cpu, lr: 2e-2, compute_dtype: float32, router_replay: {str(family == "qwen3_moe").lower()}}}
eval: {{every: 0}}
run: {{steps: 14, loggers: []}}
"""
    )
    folder = await train(load_config(RunConfig, tmp_path / "config.yaml"), tmp_path / "run")
    metrics = folder.read_metrics()
    assert max(line["learner/logprob_diff_max"] for line in metrics) < 1e-3
    if family == "qwen3_moe":
        assert max(line["learner/experts/changed"] for line in metrics) < 0.01
    rewards = [line["reward/mean"] for line in metrics]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1, rewards
