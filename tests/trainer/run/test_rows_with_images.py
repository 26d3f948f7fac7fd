"""Rows with images, and models that cannot see them: reported before anything is loaded or played."""

from pathlib import Path

import pytest

from agentloop.api.recipe import load_run_config
from agentloop.config.resolved import Facts, resolve
from agentloop.episodes.setup import RolloutSetup
from agentloop.errors import UserError

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[3] / "recipes"


def test_a_text_model_is_refused_with_the_row():
    text_model = RECIPES / "tiny" / "checkpoint"
    config = load_run_config(
        str(RECIPES / "deepeyes" / "tiny.yaml"), [f"model={text_model}", "data.train_limit=2", "data.eval_limit=1"]
    )
    with pytest.raises(UserError, match=r"Row 'train-0-0' has images, but .* has no vision tower"):
        RolloutSetup.load(config, text_model)


def test_an_engine_without_eyes_is_refused():
    folder = RECIPES / "deepeyes" / "checkpoint"
    config = load_run_config(
        str(RECIPES / "deepeyes" / "tiny.yaml"),
        ["engine={name: sglang}", "data.train_limit=1", "data.eval_limit=1"],
    )
    with pytest.raises(UserError, match=r"the engine sglang takes none\. Set engine\.name to vllm or hf"):
        RolloutSetup.load(config, folder)


def test_a_vision_model_on_an_engine_without_eyes_is_a_text_model():
    folder = RECIPES / "deepeyes" / "checkpoint"
    settings = [f"model={folder}", "data.train_limit=1", "data.eval_limit=1"]
    for engine, sees in (("sglang", False), ("hf", True)):
        config = load_run_config("tiny", [*settings, f"engine={{name: {engine}}}"])
        assert (RolloutSetup.load(config, folder).renderer.vision is not None) == sees


def test_bounds_of_pictures_come_from_the_config():
    folder = RECIPES / "deepeyes" / "checkpoint"
    config = load_run_config(
        str(RECIPES / "deepeyes" / "tiny.yaml"),
        ["data.train_limit=1", "data.eval_limit=1", "rendering.max_pixels=3136", "limits.max_tokens=640"],
    )
    episodes = RolloutSetup.load(config, folder)
    assert episodes.renderer.vision.sizes.max_pixels == 3136
    vllm = config.replace(engine=config.engine.replace(name="vllm", options={}))
    assert resolve(vllm, Facts(model=folder)).engine.options["max_pixels"] == 3136
