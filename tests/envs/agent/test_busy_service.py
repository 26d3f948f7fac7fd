"""The real programs repeat requests that a busy service refuses with 429 and 5xx: no turn is sampled twice."""

import asyncio
from dataclasses import replace

import pytest

from agentloop import Limits
from agentloop.envs.agent.harnesses.running import HARNESSES, HarnessRun
from agentloop.gateway import Gateway, Sampling
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from tests.support.busy_proxy import Proxy
from tests.support.scripted_programs import CHECK, ROW, SCRIPTS, TITLE, Editor, assert_trained_once

pytestmark = pytest.mark.slow


async def play_behind(proxy_of, engine, run):
    options = {"limits": Limits(max_tokens=1 << 20), "sampling": Sampling(), "trajectory_id": "t"}
    async with Gateway(engine, engine.renderer).session(**options) as (session, endpoint):
        root = endpoint.base_url.rsplit("/", 2)[0]
        proxy = proxy_of(root)
        async with proxy.running() as url, asyncio.timeout(120):
            result = await run.play(ROW, replace(endpoint, base_url=endpoint.base_url.replace(root, url)))
    return proxy, result, session.trajectories()


@pytest.mark.parametrize("name", sorted(HARNESSES))
def test_a_busy_service_is_asked_again_and_each_token_is_trained_once(name, program_of):
    engine = Editor(renderer_for(build_tokenizer()), SCRIPTS[name])
    run = HarnessRun(name, program_of(HARNESSES[name]), CHECK)
    statuses = [503, 500 if name == "codex" else 429]  # Codex gives up after 429
    proxy, result, streams = asyncio.run(play_behind(lambda root: Proxy(root, statuses), engine, run))
    assert result.reward == 1.0
    assert proxy.statuses == []
    assert proxy.num_requests == len(engine.sampled) + 2
    assert_trained_once(streams, engine.sampled)
    titles = [prompt for prompt, _ in engine.sampled if TITLE in engine.renderer.decode(prompt)]
    assert len(streams) == 1 + len(titles)
