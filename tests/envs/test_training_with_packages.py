"""Runs of two steps in which a tiny model plays with the real packages, each in its own interpreter."""

import json

import pytest

from agentloop.api.recipe import load_run_config
from agentloop.recipes.tiny.model import TINY, build_model
from agentloop.trainer.run.train import train

QUESTION = {
    "prompt": [{"role": "user", "content": "What is 2 + 2? Write the answer after ####."}],
    "env_class": "gsm8k",
    "reward_spec": {"method": "rule", "ground_truth": "4"},
}
SETTINGS = {
    "bfcl": ["data.train=agentloop.envs.bfcl.env:tasks", "data.train_options={categories: [base], start: 0, stop: 4}"],
    "gem": [
        "data.train=agentloop.envs.gem.env:tasks",
        "data.train_options={envs: 'game:GuessTheNumber-v0-easy', size: 8}",
    ],
    "reasoning_gym": [
        "data.train=agentloop.envs.reasoning_gym.env:tasks",
        "data.train_options={datasets: [chain_sum, leg_counting], size: 8}",
    ],
    "skyrl_gym": [],
    "textarena": [
        "data.train=agentloop.envs.textarena.env:tasks",
        "data.train_options={games: Nim-v0, size: 8}",
        "env.options={players: {first: policy, second: policy}, swap: true}",
    ],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A new model of one small layer that takes the long prompts of function calling."""
    size = TINY | {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    folder = build_model(tmp_path_factory.mktemp("model"), size=size)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    return folder


@pytest.mark.parametrize("name", SETTINGS)
async def test_a_model_trains_with_the_package(name, installed_env, model, tmp_path):
    installed_env(name)
    (tmp_path / "rows.jsonl").write_text(json.dumps(QUESTION) + "\n")
    (tmp_path / "config.yaml").write_text(
        f"""
model: {model}
data: {{train: ./rows.jsonl}}
env: {{factory: {name}}}
limits: {{max_turns: 2, max_turn_tokens: 8, max_tokens: 30000}}
engine: {{name: hf, options: {{device: cpu, max_model_len: 30000}}}}
algorithm: {{advantage: reinforce_pp, group_size: 1, groups_per_step: 2}}
learner: {{device: cpu, lr: 1e-4, token_budget: 30000, entropy_bonus: 0.01}}
run: {{steps: 2, loggers: []}}
"""
    )
    await train(load_run_config(str(tmp_path / "config.yaml"), SETTINGS[name]), tmp_path / "run")
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert step["failures/episodes"] == 0
        assert step["learner/grad_norm"] > 0
