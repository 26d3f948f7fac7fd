"""/retrieve, as clients of Search-R1 and verl ask it."""

import pytest

from agentloop.tools.search.index import build
from agentloop.tools.search.passages import Passage

pytestmark = pytest.mark.slow

RETRIEVER = '''
from agentloop import Tool
from agentloop.errors import ToolError
from agentloop.tools.search.passages import Passage

TEXTS = ["a cat", "a dog", "cat dog"]

class Words(Tool):
    """Finds."""

    def __init__(self, scored: bool = True):
        self.scored = scored

    async def call(self, ctx, query: str) -> str:
        return ""

    async def retrieve(self, queries, topk):
        if "fail" in queries:
            raise ToolError("the index is broken")
        found = []
        for query in queries:
            hits = [(float(sum(word in text for word in query.split())), str(n), text) for n, text in enumerate(TEXTS)]
            hits = sorted([hit for hit in hits if hit[0]], reverse=True)[:topk]
            found.append([Passage(n, f"Title {n}", text, *([score] if self.scored else [])) for score, n, text in hits])
        return found
'''


@pytest.fixture
def path(tmp_path) -> str:
    (tmp_path / "retriever.py").write_text(RETRIEVER)
    return f"{tmp_path}/retriever.py"


async def ask(client, **body) -> list:
    response = await client.post("/retrieve", json=body)
    assert response.status_code == 200, response.text
    return response.json()["result"]


async def test_both_response_shapes_are_served(by_hand, path):
    async with by_hand(tools=(f"{path}:Words",)) as (client, _):
        first, second = await ask(client, queries=["cat dog", "bird"], topk=2, return_scores=True)
        assert [hit["score"] for hit in first] == [2.0, 1.0]
        assert first[0]["document"] == {"id": "2", "contents": '"Title 2"\ncat dog'}
        assert second == []
        assert await ask(client, queries=["dog"], topk=1) == [[{"id": "2", "contents": '"Title 2"\ncat dog'}]]


async def test_missing_scores_become_null(by_hand, path):
    async with by_hand(tools=(f'{path}:Words={{"scored": false}}',)) as (client, _):
        assert (await ask(client, queries=["cat"], topk=1, return_scores=True))[0][0]["score"] is None


async def test_failing_index_becomes_an_error_response(by_hand, path):
    async with by_hand(tools=(f"{path}:Words",)) as (client, _):
        response = await client.post("/retrieve", json={"queries": ["fail"]})
        assert (response.status_code, response.json()["detail"]) == (502, "the index is broken")


async def test_search_tool_uses_the_route(by_hand, tmp_path):
    index = tmp_path / "index"
    build([Passage("7", "Cats", "They purr.")], index)
    async with by_hand(tools=(f'search={{"source": "{index}"}}',)) as (client, _):
        ((hit,),) = await ask(client, queries=["purr"], return_scores=True)
        assert hit["document"] == {"id": "7", "contents": '"Cats"\nThey purr.'}


async def test_single_query_uses_the_default_result_count(by_hand, path):
    async with by_hand(tools=(f"{path}:Words",)) as (client, _):
        (hits,) = await ask(client, query="a", topk=None, return_scores=True)
        assert len(hits) == 3


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "queries"),
        ({"queries": "x"}, "queries"),
        ({"queries": [1]}, "queries"),
        ({"queries": ["x"], "topk": 0}, "topk"),
        ({"queries": ["x"], "topk": True}, "topk"),
        ({"queries": ["x"], "return_scores": 1}, "return_scores"),
    ],
)
async def test_invalid_field_is_named(by_hand, path, body, field):
    async with by_hand(tools=(f"{path}:Words",)) as (client, _):
        response = await client.post("/retrieve", json=body)
        assert response.status_code == 422
        assert response.json()["detail"][0]["loc"][1] == field


async def test_retrieve_without_an_index_is_rejected(by_hand):
    async with by_hand() as (client, _):
        response = await client.post("/retrieve", json={"queries": ["x"]})
        assert response.status_code == 404
        assert "--tool 'search=" in response.json()["detail"]
