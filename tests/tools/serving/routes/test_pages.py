"""/ and /docs: what a person sees in a browser, and a program without a token."""

import asyncio
import json
import os
import re
import shlex
from html.parser import HTMLParser

import pytest

pytestmark = pytest.mark.slow

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
TOKEN = {"authorization": "Bearer s3cret"}


class Page(HTMLParser):
    """The text of a page, its links, and what a browser would load with it."""

    def __init__(self, response) -> None:
        super().__init__()
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/html")
        self.text, self.links, self.loaded = "", [], []
        self.feed(response.text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "a":
            self.links.append(values["href"])
        self.loaded += [values[name] for name in ("src", "href", "action") if name in values and tag != "a"]

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("settings", [{}, {"token": "s3cret"}])
async def test_pages_load_nothing_and_their_links_work(by_hand, settings):
    async with by_hand(**settings) as (client, _):
        for path in ("/", "/docs"):
            response = await client.get(path, headers=BROWSER)
            assert response.headers["content-security-policy"].startswith("default-src 'none'")
            page = Page(response)
            assert page.loaded == []
            assert page.links
            for link in page.links:
                assert (await client.get(link, headers=TOKEN)).status_code == 200


async def test_programs_get_json(by_hand):
    async with by_hand() as (client, _):
        about = (await client.get("/")).json()
        assert about.items() >= {"name": "agentloop tools", "isolation": "by-hand", "token": "none"}.items()
        assert about["version"]
        assert about["links"] == {"docs": "/docs", "health": "/v1/health", "metrics": "/metrics"}
        page = Page(await client.get("/", headers=BROWSER))
        assert about["example"] in page.text
        assert "by-hand" in page.text


@pytest.mark.parametrize("settings", [{}, {"token": "s3cret"}])
async def test_example_runs(by_hand, settings):
    async with by_hand(**settings) as (client, sandbox):
        example = (await client.get("/")).json()["example"]
        environment = {**os.environ, "AGENTLOOP_TOKEN": "s3cret"}
        shell = await asyncio.create_subprocess_shell(example, env=environment, stdout=asyncio.subprocess.PIPE)
        answer, _ = await shell.communicate()
        assert json.loads(answer)["status"] == "Success"
        assert sandbox.executions[-1].code == "print(6 * 7)"


async def test_protected_daemon_shows_strangers_no_settings(by_hand):
    async with by_hand(token="s3cret", preload=("secret_module",), packages=("numpy",)) as (client, _):
        for headers in ({}, BROWSER):
            for path in ("/", "/docs"):
                text = (await client.get(path, headers=headers)).text
                assert not re.search("s3cret|secret_module|numpy|by-hand", text)
        about = (await client.get("/")).json()
        assert set(about) == {"name", "token", "links", "example"}
        assert "$AGENTLOOP_TOKEN" in about["example"]


async def test_host_header_is_escaped(by_hand):
    async with by_hand(token="s3cret") as (client, _):
        host = {"host": "<b>'; rm"}
        assert "<b>" not in (await client.get("/", headers=BROWSER | host)).text
        example = (await client.get("/", headers=host)).json()["example"]
        assert shlex.split(example)[1] == "http://<b>'; rm/run_code"


async def test_docs_list_every_route_and_field(by_hand):
    async with by_hand() as (client, _):
        page = Page(await client.get("/docs", headers=BROWSER))
        paths = (await client.get("/openapi.json")).json()["paths"]
        for path, methods in paths.items():
            for method, operation in methods.items():
                assert f"{method.upper()} {path}" in page.text
                schema = operation.get("requestBody", {"content": {"application/json": {"schema": {}}}})
                for field in schema["content"]["application/json"]["schema"].get("properties", {}):
                    assert field in page.text
        assert "Seconds without a cell after which the session is closed." in page.text
