"""Environments by name: those of agentloop, those of packages, those of a file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentloop.envs import registry
from agentloop.envs.agent.interface.process import run_process
from agentloop.envs.agent.program import AgentProgram
from agentloop.envs.gymnasium.env import GymnasiumEnv
from agentloop.envs.openenv.env import OpenEnv
from agentloop.envs.rewards import load_reward
from agentloop.envs.tool_env import ToolEnv
from agentloop.errors import UserError, WrongTypeError
from agentloop.tools.toolset import Toolset
from agentloop.types.trajectory import Trajectory

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
    (tmp_path / "own.py").write_text("def make(row, *, toolset, reward, start=3): ...\n\ndef bare(): ...\n")
    assert registry.load_factory(f"{tmp_path}/own.py:make", {"start": 1}).__name__ == "make"
    with pytest.raises(UserError, match=r"'strat'.*env.options\): start"):
        registry.load_factory(f"{tmp_path}/own.py:make", {"strat": 1})
    with pytest.raises(UserError, match=r"cannot be called as factory\(row, \*\*options\)"):
        registry.load_factory(f"{tmp_path}/own.py:bare", {})
    with pytest.raises(UserError, match=r"missing a required argument: 'id'"):
        registry.load_factory("gymnasium", {})


STYLES = """
from dataclasses import dataclass

from agentloop import Env, Observation


class Bare(Env):
    async def reset(self):
        return Observation([{"role": "user", "content": str(self.task["start"])}])

    async def step(self, message):
        return Observation(), 0.0, True, False


class OwnInit(Bare):
    def __init__(self, row, start=0):
        self.start = start


class Sync(Env):
    def reset(self):
        return Observation([{"role": "user", "content": "Hi"}])

    def step(self, message):
        return Observation(), 0.0, True, False


@dataclass
class Data(Sync):
    row: dict
    start: int = 0


def make(row):
    return Bare(row)


def nothing(row):
    Bare(row)


async def late(row):
    return Bare(row)


class Half(Env):
    async def reset(self): ...


class Verifiers:
    async def env_response(self, messages, state): ...


class Wide(Sync):
    def step(self, action, info):
        return Observation(), 0.0, True, False
"""


@pytest.fixture
def styles(tmp_path) -> str:
    (tmp_path / "styles.py").write_text(STYLES)
    return f"{tmp_path}/styles.py"


@pytest.mark.parametrize("style", ["Bare", "OwnInit", "Sync", "Data", "make"])
async def test_environments_get_what_their_constructor_does_not_take(styles, style):
    factory = registry.load_factory(f"{styles}:{style}", {})
    row, toolset = {"id": "0", "start": 3, "answer": "42"}, Toolset([])
    env = registry.make_env(factory, row, toolset=toolset, reward=load_reward("exact"))
    assert env.task == row
    assert env.toolset is toolset
    assert await env.score(Trajectory(messages=[{"role": "assistant", "content": "42"}])) == 1.0


def test_an_episode_cannot_change_the_rows_of_others(styles):
    image = object()
    row = {"messages": [{"role": "user", "content": "?"}], "choices": [1, 2], "image": image}
    env = registry.make_env(registry.load_factory(f"{styles}:Bare", {}), row)
    env.task["messages"][0]["content"] = "changed"
    env.task["choices"].pop()
    assert env.task.pop("image") is image
    assert row == {"messages": [{"role": "user", "content": "?"}], "choices": [1, 2], "image": image}


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("late", "is an async function. Use a plain function"),
        ("Half", "does not define step. An Env needs reset() and step(message)"),
        ("Verifiers", "does not derive from agentloop.Env: derive it"),
        ("Wide", "(styles.py, line 55) cannot be called as step(self, message): missing a required argument: 'info'"),
    ],
)
def test_classes_that_cannot_be_played_end_the_start(styles, style, words):
    with pytest.raises(UserError) as caught:
        registry.load_factory(f"{styles}:{style}", {})
    assert words in str(caught.value)


def test_a_class_of_gymnasium_names_the_adapter(tmp_path):
    (tmp_path / "game.py").write_text("import gymnasium\nclass Game(gymnasium.Env): ...\n")
    with pytest.raises(UserError, match=r"set env.factory to gymnasium, and env.options to \{id: '.*game.py:Game'\}"):
        registry.load_factory(f"{tmp_path}/game.py:Game")


def test_a_function_that_returns_no_environment_is_named(styles):
    with pytest.raises(WrongTypeError, match=r"nothing \(styles.py, line 38\) returned None as the environment"):
        registry.make_env(registry.load_factory(f"{styles}:nothing", {}), {})


@pytest.mark.parametrize(
    ("factory", "options", "words"),
    [
        ("agent", {"harness": "codex", "check": "pytest"}, "The option 'check' of the environment 'agent' must be"),
        ("agent", {"harness": "codex", "compact_at": "abc"}, "The option 'compact_at' .* int"),
        ("harbor", {"carried": "/app"}, "The option 'carried' .*, got str"),
        ("harbor", {"network": "foo"}, "The option 'network' .*Literal"),
    ],
)
def test_options_of_a_wrong_type_are_named(factory, options, words):
    with pytest.raises(UserError, match=words):
        registry.load_factory(factory, options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": "python x.py"}, "`command` in env.options is a list .*, not 'python x.py'"),
        ({"harness": "codex", "check": []}, r"`check` in env.options is a list .*, not \[\]"),
        ({"harness": "codex", "compact_at": 0}, "`compact_at` in env.options is 0: set a number of tokens above 0"),
    ],
)
def test_values_that_no_agent_can_have_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        AgentProgram({"id": "0"}, **options)


async def solve(task):
    """An agent that does not take the model."""


def test_an_agent_with_other_parameters_ends_the_start():
    with pytest.raises(UserError, match=r"cannot be called as \(task, model\) .*: too many positional arguments"):
        AgentProgram.check_rows([{"id": "0"}], {"agent": solve})


@pytest.mark.slow
async def test_a_command_that_cannot_be_started_names_its_option():
    with pytest.raises(UserError, match=r"Correct `check` in env\.options"):
        await run_process(["/no/such/check"], {}, option="check")
