"""A run's config with an environment by its name, rows of seeds, and the rewards of its moves alone."""

from pathlib import Path

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.episodes.setup import RolloutSetup
from agentloop.errors import UserError

pytestmark = pytest.mark.slow

CHECKPOINT = Path(__file__).parents[3] / "recipes" / "tiny" / "checkpoint"

CONFIG = f"""
model: {CHECKPOINT}
data:
  train: agentloop.envs.gymnasium.rows:seeds
  train_options: {{prompt: Get to G., num_rows: 6}}
env:
  factory: gymnasium
  options: {{id: FrozenLake-v1, options: {{render_mode: ansi}}, action_names: [left, down, right, up]}}
  tools: [{{name: code_interpreter, options: {{max_concurrency: 4}}}}]
learner: {{}}
"""


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


async def test_episodes_of_a_config(config):
    episodes = RolloutSetup.load(load_config(RunConfig, config), CHECKPOINT)
    assert [row["seed"] for row in episodes.train] == list(range(6))
    one, two = (episodes.make_env(row) for row in episodes.train[:2])
    assert list(one.toolset.tools) == ["code_interpreter", "act"]
    assert one.toolset.tools["code_interpreter"].limit is not None
    assert one.toolset.schemas is two.toolset.schemas  # renderers know tools by this
    assert (await one.reset()).messages[-1]["content"].startswith("Get to G.\n\n[S]FFF")
    await one.close()


def test_answers_need_a_reward(config):
    with pytest.raises(UserError, match=r"env\.reward is missing"):
        RolloutSetup.load(load_config(RunConfig, config, ["env.factory=tool", "env.options={}"]), CHECKPOINT)
