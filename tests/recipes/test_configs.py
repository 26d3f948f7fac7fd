"""The settings at full scale: they are read, they fit together, and what they name is there."""

import pytest

from agentloop.api.recipe import built_in_recipes, load_run_config
from agentloop.envs.rewards import load_reward
from agentloop.tools import registry
from agentloop.tools.toolset import Toolset
from agentloop.trainer.run.checks import check_trainable

pytestmark = pytest.mark.slow


def test_all_recipes_are_found():
    names = [
        "chain",
        "deepeyes",
        "frozen_lake",
        "reasoning_gym",
        "retool",
        "search_r1",
        "self_play",
        "smollm2",
        "swe",
        "terminal",
        "text_to_sql",
        "tiny",
    ]
    assert set(names) <= set(built_in_recipes())


@pytest.mark.parametrize("name", sorted(built_in_recipes()))
def test_recipe_config_is_consistent(name):
    config = load_run_config(name, [])
    check_trainable(config)
    if name not in ("reasoning_gym", "self_play", "swe", "terminal"):  # verifiers, games and tests give the rewards
        assert load_reward(config.env.reward, config.env.reward_options).name == config.env.reward
    tools = [tool for each in config.env.tools for tool in registry.load_all(each.name, **each.options)]
    assert len(Toolset(tools).schemas) == len(config.env.tools)


@pytest.mark.parametrize("name", sorted(set(built_in_recipes()) - {"tiny"}))
def test_readme_has_the_required_sections(name):
    readme = built_in_recipes()[name].with_name("README.md").read_text(encoding="utf-8")
    for heading in ("## Expected curve and cost", "## Shrink it"):
        assert heading in readme
