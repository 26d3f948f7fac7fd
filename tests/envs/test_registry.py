"""Environments by name: those of agentloop, those of packages, those of a file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentloop.envs import registry
from agentloop.envs.gymnasium.env import GymnasiumEnv
from agentloop.envs.openenv.env import OpenEnv
from agentloop.envs.tool_env import ToolEnv
from agentloop.errors import UserError

PLUGIN = Path(__file__).parents[1] / "packages" / "agentloop-example-env"


def test_built_in_environments_are_registered():
    assert registry.load_factory("tool") is ToolEnv
    assert registry.load_factory("gymnasium") is GymnasiumEnv
    assert registry.load_factory("openenv") is OpenEnv
    assert registry.load_factory("agentloop.envs.tool_env:ToolEnv") is ToolEnv


def test_invalid_environments_raise_user_error():
    with pytest.raises(UserError, match=r"no environment 'gymnasum'.*Did you mean 'gymnasium'\?"):
        registry.load_factory("gymnasum")
    with pytest.raises(UserError, match="of type int"):
        registry.load_factory("agentloop.envs.gymnasium.observations:_MAX_TEXT")


@pytest.mark.slow
def test_pip_installed_package_is_found_by_name(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(PLUGIN, source)  # the build writes beside the source
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", tmp_path / "site", source], check=True)
    code = """
import asyncio, json
from agentloop.envs.registry import load_factory
env = load_factory("countdown")({"id": "0"}, toolset=None, reward=None, start=1)
first = asyncio.run(env.reset()).messages[0]["content"]
steps = [asyncio.run(env.step({"role": "assistant", "content": text}))[1:] for text in "10"]
print(json.dumps([first, steps]))
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, steps = json.loads(found.stdout)
    assert first == "Count down from 1, one number a turn."
    assert steps == [[1.0, False, False], [1.0, True, False]]


def test_unknown_options_raise_before_any_episode(tmp_path):
    (tmp_path / "own.py").write_text("def make(row, *, toolset, reward, start=3): ...\n\ndef bare(row): ...\n")
    assert registry.load_factory(f"{tmp_path}/own.py:make", {"start": 1}).__name__ == "make"
    with pytest.raises(UserError, match=r"'strat'.*env.options\): start"):
        registry.load_factory(f"{tmp_path}/own.py:make", {"strat": 1})
    with pytest.raises(UserError, match=r"factory\(row, toolset=..., reward=..., \*\*options\)"):
        registry.load_factory(f"{tmp_path}/own.py:bare", {})
    with pytest.raises(UserError, match=r"missing a required argument: 'id'"):
        registry.load_factory("gymnasium", {})
