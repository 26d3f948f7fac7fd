import json

import pytest
from PIL import Image
from rich.cells import cell_len
from rich.text import Text
from typer.testing import CliRunner

from agentloop.cli.authoring.tools import app
from agentloop.errors import UserError
from tests.support.installed import install

TOOLS = '''
from agentloop import tool

@tool(inline=True)
def join(words: list[str], count: int = 1, sign: str = "+") -> str:
    """Join words."""
    return sign.join(words * count)
'''


@pytest.fixture
def spec(tmp_path) -> str:
    (tmp_path / "tools.py").write_text(TOOLS)
    return f"{tmp_path}/tools.py:join"


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.slow
def test_list_shows_registered_tools():
    result = run("list")
    assert result.exit_code == 0
    assert "code_interpreter\tRun Python code" in result.output


def test_list_shows_required_options():
    lines = run("list").output.splitlines()
    for name, parameter, needed in (
        ("search", "query", "source"),
        ("web_search", "query", "provider_name"),
        ("mcp", "", "command or url"),
    ):
        (line,) = [line for line in lines if line.startswith(f"{name}\t")]
        assert f"needs: {needed}" in line
        assert parameter in line
    assert "cannot be made" not in "".join(lines)
    assert "Search for passages that answer a question." in "".join(lines)


def test_list_cuts_nothing_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich believe in a terminal
    output = run("list").output
    assert "…" not in output
    assert max(map(cell_len, Text.from_ansi(output).plain.splitlines())) == 50


def test_call_accepts_pairs_and_json(spec):
    assert run("call", spec, 'words=["a", "b"]', "count=2", "sign=1").output == "a1b1a1b\n"
    assert run("call", spec, "--json", '{"words": ["a", "b"]}', "sign=-").output == "a-b\n"


@pytest.mark.parametrize("given", [["sign=-", "sign=+"], ["sign=-", "sign=-"], ["--json", '{"sign": "+"}', "sign=-"]])
def test_an_argument_that_is_given_twice_is_refused(spec, given):
    error = run("call", spec, 'words=["a", "b"]', *given).exception
    assert isinstance(error, UserError)
    assert "'sign' is given twice" in str(error)


def test_an_option_of_a_tool_that_is_given_twice_is_refused(spec):
    error = run("call", spec, "--option", "a=1", "--option", "a=2").exception
    assert isinstance(error, UserError)
    assert "'a' is given twice" in str(error)


CONTEXT = '''
from agentloop import Tool, ToolContext, ToolResult


class Look(Tool):
    """Look at the first picture."""

    async def call(self, ctx: ToolContext, side: int = 8) -> ToolResult:
        small = ctx.images[0].resize((side, side))
        return ToolResult([{"type": "text", "text": ctx.task["sky"] + ": "}, {"type": "image", "image": small}])
'''


def test_call_accepts_a_row_and_images(tmp_path):
    (tmp_path / "look.py").write_text(CONTEXT)
    Image.new("RGB", (32, 32)).save(tmp_path / "sky.png")
    given = ["--task", '{"sky": "blue"}', "--image", str(tmp_path / "sky.png")]
    assert run("call", f"{tmp_path}/look.py:Look", *given).output == "blue: [image of 8 x 8 pixels]\n"
    broken = run("call", f"{tmp_path}/look.py:Look", "--image", str(tmp_path / "look.py"))
    assert "cannot be read as an image" in str(broken.exception)


LAST_TURN = '''
from agentloop import Tool, ToolContext


class Last(Tool):
    """Return the arguments of the last turn, and the role of the first message."""

    async def call(self, ctx: ToolContext, city: str) -> list:
        return [ctx.messages[-1]["tool_calls"][0]["function"]["arguments"], ctx.messages[0]["role"]]
'''


def test_a_call_sees_the_messages_of_the_row_and_its_own_turn(tmp_path):
    (tmp_path / "last.py").write_text(LAST_TURN)
    assert json.loads(run("call", f"{tmp_path}/last.py:Last", "city=Oslo").output) == [{"city": "Oslo"}, "assistant"]
    task = '{"messages": [{"role": "user", "content": "Where?"}]}'
    result = run("call", f"{tmp_path}/last.py:Last", "city=Oslo", "--task", task)
    assert json.loads(result.output) == [{"city": "Oslo"}, "user"]


def test_tool_exception_shows_its_traceback(tmp_path, caplog):
    (tmp_path / "look.py").write_text(CONTEXT)
    result = run("call", f"{tmp_path}/look.py:Look")
    assert (result.exit_code, result.stdout) == (1, "IndexError: list index out of range\n")
    assert "small = ctx.images[0]" in caplog.text


def test_schema_is_printed_as_models_see_it(spec):
    shown = json.loads(run("call", spec, "--schema").output)
    assert shown["function"]["name"] == "join"
    assert shown["function"]["parameters"]["required"] == ["words"]


def test_list_reports_invalid_tools_and_continues(tmp_path, monkeypatch):
    install(tmp_path, "agentloop.tools", seven="agentloop.tools.sessions:logging")
    monkeypatch.syspath_prepend(tmp_path)
    result = run("list")
    assert result.exit_code == 0
    assert "'seven' is module, not a Tool class" in result.output
    assert "web_search" in result.output


def test_call_error_exits_with_1(spec):
    result = run("call", spec, "wrds=[]")
    assert result.exit_code == 1
    assert "words: field required\nwrds: unknown argument. Did you mean 'words'?" in result.output


@pytest.mark.parametrize("arguments", [["no pair"], ["--json", "{"], ["--json", "[]"]])
def test_unreadable_arguments_raise(spec, arguments):
    assert isinstance(run("call", spec, *arguments).exception, UserError)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("code_interpreter", "stateful=False", "option 'stateful' of the tool 'code_interpreter' must be of type bool"),
        ("code_interpreter", "max_images=-1", "no `max_images` below 0"),
        ("sql_query", "timeout=abc", "option 'timeout' of the tool 'sql_query' must be of type float, got str"),
        ("sql_query", "folder=no_such_folder", "option folder is 'no_such_folder', which is not a folder"),
    ],
)
def test_wrong_options_raise(name, option, message):
    error = run("call", name, "--option", option, "--json", '{"code": "1", "sql": "SELECT 1"}').exception
    assert isinstance(error, UserError)
    assert message in str(error)


@pytest.mark.slow
def test_code_interpreter_runs_from_the_shell():
    result = run("call", "code_interpreter", "code=1/0")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.output


@pytest.mark.parametrize("engine", ["sqlite", "tantivy"])
def test_built_index_can_be_searched(engine, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"title": "Oslo", "text": "Capital of Norway."}\n{"title": "Bergen", "text": "Rain."}\n')
    index = str(tmp_path / "index")
    assert "2 passages," in run("index", str(corpus), index, "--engine", engine).output
    found = run("call", "search", "--option", f"source={index}", "query=capital").output
    assert found == "Doc 1(Title: Oslo) Capital of Norway.\n"


def test_index_counts_the_files_that_it_skips(tmp_path):
    corpus = tmp_path / "notes"
    (corpus / "deep").mkdir(parents=True)
    (corpus / "a.txt").write_text("first")
    assert "skipped" not in run("index", str(corpus), str(tmp_path / "index")).output
    (corpus / "page.html").write_text("second")
    reads = "only .txt, .text, .md, .markdown, .rst are read."
    assert f"1 file was skipped: {reads}" in run("index", str(corpus), str(tmp_path / "index")).output
    (corpus / "deep" / "README").write_text("third")
    output = run("index", str(corpus), str(tmp_path / "index")).output
    assert "1 passage," in output
    assert f"2 files were skipped: {reads}" in output


@pytest.mark.parametrize("engine", ["sqlite", "tantivy"])
def test_index_replaces_an_index_and_no_other_file(engine, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"title": "Oslo", "text": "Capital of Norway."}\n')
    for _ in range(2):
        output = run("index", str(corpus), str(tmp_path / "index"), "--engine", engine).output
        assert "1 passage," in output
        assert "1 passages" not in output
    result = run("index", str(corpus), str(corpus), "--engine", engine)
    assert isinstance(result.exception, UserError)
    assert "corpus.jsonl exists and is not a search index" in str(result.exception)
    assert corpus.read_text() == '{"title": "Oslo", "text": "Capital of Norway."}\n'


def test_a_result_with_a_lone_surrogate_is_printed(tmp_path):
    (tmp_path / "t.py").write_text("def odd():\n    'Odd.'\n    return 'a\\ud800b'\n")
    result = run("call", f"{tmp_path}/t.py:odd")
    assert (result.exit_code, result.output) == (0, "a\ufffdb\n")


MANY = """
from agentloop import tool

@tool
def first() -> str:
    "First."
    return "one"

@tool
def second() -> str:
    "Second."
    return "two"

class Source:
    def __init__(self, *tools):
        self.found = list(tools)

    def tools(self):
        return self.found

many, none = Source(first, second), Source()
"""

ANYTHING = """
from agentloop import Tool
from agentloop.tools.schema import SchemaArguments

class Anything(Tool):
    "Repeat a value."
    arguments = SchemaArguments({"properties": {"value": True}}, what="a tool")

    def call(self, ctx, **values):
        return str(values)
"""


def test_one_of_several_tools_is_called(tmp_path):
    (tmp_path / "t.py").write_text(MANY)
    assert run("call", f"{tmp_path}/t.py:many", "--tool", "first").output == "one\n"
    for arguments, message in (
        ((":many",), "has 2 tools: choose one with --tool, or use load_all. Its tools: first, second."),
        ((":many", "--tool", "frist"), "has no tool 'frist'. Did you mean 'first'? Its tools: first, second."),
        ((":none",), "has no tools, so there is none to call"),
    ):
        spec, *rest = arguments
        error = run("call", f"{tmp_path}/t.py{spec}", *rest).exception
        assert isinstance(error, UserError)
        assert message in str(error)


def test_a_parameter_may_have_the_schema_true(tmp_path):
    (tmp_path / "t.py").write_text(ANYTHING)
    assert run("call", f"{tmp_path}/t.py:Anything", "value=3").output == "{'value': 3}\n"
