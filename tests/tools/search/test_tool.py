import asyncio
import math

import pytest

from agentloop.errors import UserError
from agentloop.tools.search.index import build
from agentloop.tools.search.passages import Passage
from agentloop.tools.search.tool import Search
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall


def ask(tool: Search, query: str):
    async def run():
        toolset = Toolset([tool])
        await toolset.start()
        sessions = toolset.sessions("t", task={}, seed=0)
        try:
            return await sessions.call(ToolCall("search", {"query": query}, "call_0"), math.inf)
        finally:
            await sessions.close()
            await toolset.shutdown()

    return asyncio.run(run())


@pytest.fixture
def source(tmp_path):
    texts = {"Oslo": "Oslo is in Norway. " * 100, "Bergen": "Bergen is in Norway, too."}
    build([Passage(title, title, text) for title, text in texts.items()], tmp_path / "i.sqlite")
    return str(tmp_path / "i.sqlite")


def test_passages_are_numbered_and_truncated(source):
    result = ask(Search(source, max_passage_chars=30), "where is Bergen in Norway")
    assert result.content == (
        "Doc 1(Title: Bergen) Bergen is in Norway, too.\nDoc 2(Title: Oslo) Oslo is in Norway. Oslo is ..."
    )
    assert result.metrics == {"found": 2.0}


def test_long_titles_are_truncated(tmp_path):
    build([Passage("", "Oslo and Bergen", "Norway")], tmp_path / "i.sqlite")
    result = ask(Search(str(tmp_path / "i.sqlite"), max_passage_chars=10), "norway")
    assert result.content == "Doc 1(Title: Oslo an...) Norway"


def test_empty_result_is_not_an_error(source):
    result = ask(Search(source), "zebra")
    assert (result.content, result.is_error) == ("Nothing was found.", False)


def test_invalid_options_raise_user_error(tmp_path):
    with pytest.raises(UserError, match="at least 1"):
        Search("x", topk=0)
    with pytest.raises(UserError, match="not a search index"):
        ask(Search(str(tmp_path / "missing")), "a")
