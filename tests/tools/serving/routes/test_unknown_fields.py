"""Fields that a body does not have: errors in agentloop's own routes, ignored in the protocols of others."""

from string import Formatter

import pytest

from agentloop.tools.search.index import build
from agentloop.tools.search.passages import Passage
from tests.tools.serving.conftest import ByHand, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

OTHERS = ("/run_code", "/run_jupyter", "/retrieve")
"""Routes whose protocol belongs to somebody else."""


def bodies(document) -> dict[tuple[str, str], dict]:
    """Return the schema of the JSON body of each method and path that has one."""
    return {
        (method.upper(), path): operation["requestBody"]["content"]["application/json"]["schema"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    }


def filled(path: str, ids: dict[str, str]) -> str:
    """Return a path with the ids of existing objects; the first part after /v1 says which."""
    names = {name for _, name, _, _ in Formatter().parse(path) if name}
    id = ids.get(path.split("/")[2], "") if names else ""
    return path.format(**{"id": id, "number": "1", "name": "code_interpreter"})


async def test_schema_says_whether_a_body_takes_unknown_fields(by_hand):
    async with by_hand() as (client, _):
        found = bodies((await client.get("/openapi.json")).json())
        assert {path for _, path in found} >= {*OTHERS, "/v1/sessions", "/v1/boxes", "/v1/tools/{name}/call"}
        for (_, path), schema in found.items():
            assert schema.get("additionalProperties", True) is (path in OTHERS), path


async def test_every_body_of_our_own_routes_refuses_unknown_fields(tmp_path):
    build([Passage("1", "Oslo", "Capital of Norway.")], tmp_path / "index.sqlite")
    search = f'search={{"source": "{tmp_path}/index.sqlite"}}'
    async with serving(ByHand(), boxes="rootfs", tools=(search,)) as client:
        session = (await client.post("/v1/sessions", json={})).json()["id"]
        box = await client.post("/v1/boxes", json={"reference": "builtin:busybox", "memory_mb": 128, "storage_mb": 16})
        ids = {"sessions": session, "boxes": box.json()["id"]}
        spawned = await client.post(filled("/v1/boxes/{id}/processes", ids), json={"command": "cat"})
        assert spawned.json() == {"number": 1}
        for method, path in bodies((await client.get("/openapi.json")).json()):
            response = await client.request(method, filled(path, ids), json={"unheard_of": 1})
            problems = response.json().get("detail", ())
            unknown = [each["msg"] for each in problems if each["loc"] == ["body", "unheard_of"]]
            if path in OTHERS:
                assert unknown == [], path
            else:
                assert response.status_code == 422, path
                assert unknown[0].startswith("Unknown field. Fields: "), path


async def test_unknown_field_is_answered_with_the_nearest_one(by_hand):
    async with by_hand() as (client, sandbox):
        response = await client.post("/v1/sessions", json={"idel_seconds": 5})
        assert response.status_code == 422
        assert response.json()["detail"] == [
            {
                "type": "extra_forbidden",
                "loc": ["body", "idel_seconds"],
                "msg": "Unknown field. Did you mean 'idle_seconds'? Fields: memory_mb, files, idle_seconds, "
                "output_bytes, display_bytes.",
            }
        ]
        assert sandbox.settings == []


async def test_clients_of_sandbox_fusion_may_send_more(by_hand):
    async with by_hand() as (client, _):
        assert (await client.run("x", dataset="aime", code2=5))["status"] == "Success"
        notebook = await client.post("/run_jupyter", json={"cells": ["x"], "dataset": "aime"})
        assert notebook.json()["status"] == "Success"


async def test_clients_of_search_servers_may_send_more(tmp_path, by_hand):
    build([Passage("1", "Oslo", "Capital of Norway.")], tmp_path / "index.sqlite")
    async with by_hand(tools=(f'search={{"source": "{tmp_path}/index.sqlite"}}',)) as (client, _):
        response = await client.post("/retrieve", json={"query": "norway", "id": 7})
        assert response.json() == {"result": [[{"id": "1", "contents": '"Oslo"\nCapital of Norway.'}]]}
