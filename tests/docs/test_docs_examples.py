"""Run every example of the pages on tools, rewards and datasets, and check that their tables list every option."""

import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from agentloop.config.loading import validated
from agentloop.config.rollout import RenderingConfig
from agentloop.config.run import RunSettings
from agentloop.config.tasks import DataConfig, EnvConfig
from agentloop.envs.registry import load_factory
from agentloop.envs.rewards import REWARDS, load_reward
from agentloop.registry.registry import package_of
from agentloop.tools import registry

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "guides/tools.md",
    "guides/environments.md",
    "guides/rewards.md",
    "guides/datasets.md",
    "guides/gateway.md",
    "guides/sandboxes.md",
    "scaling/sandbox-daemon.md",
    "coming-from/verl.md",
    "guides/view.md",
    "reference/tools.md",
)
_BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return (language, file name or "", content) of each block."""
    return _BLOCK.findall((DOCS / page).read_text())


def run(command: list[str] | str, folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200"}
    done = subprocess.run(
        command, shell=isinstance(command, str), cwd=folder, env=environment, capture_output=True, text=True
    )
    assert isinstance(command, str) or done.returncode == 0, done.stderr
    return done.stdout


def check_config(config: dict, page: str) -> None:
    if "data" in config:
        validated(DataConfig, config["data"], page)
    if "env" in config:
        env = validated(EnvConfig, config["env"], page)
        if env.reward is not None:
            load_reward(env.reward, env.reward_options)
        load_factory(env.factory, env.options)
    if "rendering" in config:
        validated(RenderingConfig, config["rendering"], page)
    if "run" in config:
        validated(RunSettings, config["run"], page)


@pytest.fixture(scope="module")
def daemon():
    """The address of a daemon and its token, as variables of the environment."""
    command = [sys.executable, "-m", "agentloop.tools", "serve", "--port", "0", "--log-level", "warning"]
    environment = {"AGENTLOOP_TOKEN": "s3cret"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as process:
        assert process.stdout is not None
        yield environment | {"AGENTLOOP_DAEMON": process.stdout.readline().split()[-1]}
        process.terminate()


@pytest.mark.parametrize("page", PAGES)
def test_examples_run_with_the_documented_results(page, tmp_path, monkeypatch, daemon):
    for variable, value in daemon.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    for language, name, content in blocks(page):
        if language == "python" and name:
            with (tmp_path / name).open("a") as file:
                file.write(content)
        elif language == "python":
            run([sys.executable, "-c", content], tmp_path)
        elif language == "console":
            for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", content, re.MULTILINE):
                assert run(command, tmp_path) == output, command
        elif language == "yaml":
            check_config(yaml.safe_load(content), page)
        elif language == "toml":
            tomllib.loads(content)
        else:
            raise AssertionError(f"an example of no known kind: {language}")


def options_of(found: object, *, skip: int = 0) -> set[str]:
    parameters = list(inspect.signature(found).parameters.values())[skip:]
    return {each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD}


def test_tables_list_every_tool_option():
    text = (DOCS / "reference/tools.md").read_text()
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE))
    own = {name for name, entry in registry.TOOLS.entry_points().items() if package_of(entry) == "agentloop"}
    assert set(sections) == own
    for name, text in sections.items():
        assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == options_of(registry.TOOLS.get(name)), name


def test_table_lists_every_reward_and_its_options():
    rows = dict(re.findall(r"^\| `(\w+)` \|.*?\|([^|]*)\|$", (DOCS / "guides/rewards.md").read_text(), re.MULTILINE))
    assert set(rows) == set(REWARDS)
    for name, options in rows.items():
        found = REWARDS.get(name)
        known = options_of(found, skip=0 if inspect.isclass(found) else 2)
        assert known <= set(re.findall(r"`(\w+)`", options)), name
