"""The questions of the recipe, made by the real package."""

from agentloop.api.recipe import load_run_config
from agentloop.envs.reasoning_gym.env import tasks


def test_the_package_makes_all_datasets_and_levels(installed_env):
    installed_env("reasoning_gym")
    data = load_run_config("reasoning_gym", []).data
    asked = [{**source.options, **level} for source in data.train for level in source.levels or [{}]]
    for options in [*asked, data.eval_options]:
        rows = list(tasks(**{**options, "size": 12}))
        assert len(rows) == 12
        assert {row["dataset"] for row in rows} <= set(options["datasets"])
        assert {row["level"] for row in rows} == {options.get("level")}
