import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import UserError
from agentloop.registry.registry import package_of
from agentloop.tools import registry
from agentloop.tools.base import Tool
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.tools.toolset import Toolset
from tests.support.installed import install

PLUGIN = Path(__file__).parents[1] / "packages" / "agentloop-example-tool"

OWN_TOOLS = '''
import enum
from pathlib import Path

from agentloop import Tool, tool

class Loud(enum.Enum):
    NO = "no"
    YES = "yes"

class Shout(Tool):
    """Shout a word."""
    def __init__(self, times: int = 1, folder: Path = Path("."), loud: Loud = Loud.NO):
        self.times, self.folder, self.loud = times, folder, loud
    async def call(self, ctx, word: str) -> str:
        return word.upper() * self.times

def whisper(word: str) -> str:
    """Whisper a word."""
    return word.lower()

made = tool(name="quiet")(whisper)
number = 3
'''


@pytest.fixture
def own_tools(tmp_path) -> Path:
    path = tmp_path / "own_tools.py"
    path.write_text(OWN_TOOLS)
    return path


def test_built_in_tools_are_registered():
    assert package_of(registry.TOOLS.entry_points()["code_interpreter"]) == "agentloop"
    assert isinstance(registry.load("code_interpreter", timeout=2.0), CodeInterpreter)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(
        UserError, match=r"no tool 'code_interpeter'.*Did you mean 'code_interpreter'\?.*one of: bash, code"
    ):
        registry.load("code_interpeter")


def test_options_get_the_types_of_their_annotations(own_tools):
    shout: Any = registry.load(f"{own_tools}:Shout", folder="a/b", loud="yes")
    assert shout.folder == Path("a/b")
    assert shout.loud.name == "YES"


def test_class_function_and_tool_load_from_a_file(own_tools):
    shout = registry.load(f"{own_tools}:Shout", times=2)
    assert (shout.name, shout.times, shout.description) == ("shout", 2, "Shout a word.")
    assert registry.load(f"{own_tools}:whisper").name == "whisper"
    assert registry.load(f"{own_tools}:made").name == "quiet"


def test_tool_loads_from_a_module(own_tools, monkeypatch):
    monkeypatch.syspath_prepend(own_tools.parent)
    assert isinstance(registry.load("own_tools:Shout"), Tool)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Shout", {"time": 2}, r"no option 'time'.*Did you mean 'times'.*takes: times"),
        ("Shout", {"times": "2"}, r"option 'times' of the tool '.*:Shout' must be of type int, got str"),
        ("made", {"times": 2}, "takes no options: got times"),
        ("number", {}, "is int, not a Tool"),
        ("Shoot", {}, "Did you mean 'Shout'"),
    ],
)
def test_invalid_tools_raise_user_error(own_tools, name, options, message):
    with pytest.raises(UserError, match=message):
        registry.load(f"{own_tools}:{name}", **options)


def test_failing_plugin_import_is_named(own_tools, monkeypatch):
    (own_tools.parent / "broken_plugin.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(own_tools.parent)
    install(own_tools.parent, registry.GROUP, broken="broken_plugin:Tool")
    with pytest.raises(UserError, match=r"'broken' of the package 'example' fails.*No module named 'no_such_module'"):
        registry.load("broken")


@pytest.mark.slow
def test_pip_installed_package_is_found_by_name(tmp_path):
    source = tmp_path / "source"
    subprocess.run(["cp", "-r", PLUGIN, source], check=True)  # the build writes beside the source
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", tmp_path / "site", source], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

    code = """
import json
from agentloop.registry.registry import package_of
from agentloop.tools import registry
from agentloop.tools.toolset import Toolset
tool = registry.load("weather", celsius=10.0)
print(json.dumps([package_of(registry.TOOLS.entry_points()["weather"]), Toolset([tool]).schemas[0]["function"]]))
"""
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    package, function = json.loads(found.stdout)
    assert package == "agentloop-example-tool"
    assert function["name"] == "weather"
    assert function["parameters"]["properties"]["city"] == {"type": "string", "description": "City name"}

    main = "from agentloop.cli import main; main()"
    command = [sys.executable, "-c", main, "tools", "call", "weather", "city=Rome", "unit=F"]
    called = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert called.stdout == "Rome: 69.8 F, sunny\n"


async def test_failing_constructor_or_start_names_its_location(tmp_path):
    (tmp_path / "own.py").write_text(
        "from agentloop import Tool\n"
        "class Made(Tool):\n"
        "    def __init__(self): self.key = {}['KEY']\n"
        "class Started(Tool):\n"
        "    def start(self): raise OSError('no server')\n"
        "    def call(self, ctx) -> str: return ''\n"
    )
    with pytest.raises(UserError, match=r"cannot be created: KeyError: 'KEY' \(own.py, line 3\)"):
        registry.load(f"{tmp_path}/own.py:Made")
    with pytest.raises(UserError, match=r"'started' cannot start: OSError: no server \(own.py, line 5\)"):
        await Toolset([registry.load(f"{tmp_path}/own.py:Started")]).start()
