"""Groups of episodes of one Harbor task: its box is prepared once, in the background, and nothing of it is left."""

import asyncio
import json

import pytest

from agentloop import AgentLoop
from agentloop.boxes.shared import close_providers
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.harbor.env import HarborEnv, tasks
from agentloop.episodes.worker import RolloutWorker
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.tools.machine.bash import Bash
from agentloop.tools.toolset import Toolset
from agentloop.types.requests import RolloutRequest
from tests.boxes.processes import boxes_of_this_process, running
from tests.support.harbor_tasks import make_task

pytestmark = pytest.mark.slow

OPTIONS = {"provider": "rootfs", "provider_options": {"memory_mb": 256, "storage_mb": 64}}
SETUP = "cat /proc/sys/kernel/random/uuid > /app/id"
STEP = {"test": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"}


def prepared_task(folder, setup):
    """Write a task whose setup.sh writes a random id."""
    make_task(folder, steps={"one": STEP})
    (folder / "steps/one/workdir").mkdir()
    (folder / "steps/one/workdir/setup.sh").write_text(setup)
    return folder


def group_worker(folder, tree, **options):
    """Return a worker whose model prints the id of its box and changes it."""
    renderer = renderer_for(build_tokenizer())
    call = {"name": "bash", "arguments": {"command": "cat /app/id; echo changed > /app/id"}}
    turns = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>", "Done."]
    ids = [[*renderer.encoder.encode_rendered(turn), renderer.stop_token_ids[0]] for turn in turns]
    loop = AgentLoop(ScriptedEngine(ids), renderer)
    row = next(tasks(str(folder)))
    return RolloutWorker(
        loop,
        lambda _: HarborEnv(row, toolset=Toolset([Bash()]), images={"*": str(tree)}, **OPTIONS),
        **options,
    )


def play(folder, tree, n, **options):
    async def group():
        worker = group_worker(folder, tree, **options)
        try:
            found = await worker.play(RolloutRequest(group_id="g", row=0, n=n, seed=0))
            return found.trajectories, boxes_of_this_process()
        finally:
            await close_providers()

    return asyncio.run(group())


def ids_of(trajectories):
    return [message["content"].strip() for t in trajectories for message in t.messages if message["role"] == "tool"]


def test_episodes_of_a_group_get_copies_of_one_prepared_box(tmp_path, tree):
    found, left = play(prepared_task(tmp_path / "t", SETUP), tree, 4, max_concurrency=2, prepare_ahead=1)
    assert [t.reward for t in found] == [1.0] * 4
    ids = ids_of(found)
    assert len(ids) == 4
    assert len(set(ids)) == 1
    assert len(ids[0]) == 36
    assert left == 0
    assert all(t.metrics["env/seconds_waiting_for_box"] >= 0 for t in found)


def test_each_episode_gets_the_programs_that_the_setup_has_started(tmp_path, tree):
    found, left = play(prepared_task(tmp_path / "t", f"{SETUP}; sleep 4791 > /dev/null 2>&1 &"), tree, 3)
    assert len(set(ids_of(found))) == 3
    assert left == 0


def test_a_setup_that_fails_fails_the_episodes(tmp_path, tree):
    found, left = play(prepared_task(tmp_path / "t", "echo no >&2; exit 3"), tree, 3)
    assert all("setup.sh of the step one of t failed: no" in t.error for t in found)
    assert left == 0


def test_boxes_of_waiting_episodes_end_with_a_group_that_is_cancelled(tmp_path, tree):
    folder = prepared_task(tmp_path / "t", f"{SETUP}; sleep 4792 > /dev/null 2>&1 &")

    async def cancel():
        worker = group_worker(folder, tree, max_concurrency=1, prepare_ahead=2)
        playing = asyncio.ensure_future(worker.play(RolloutRequest(group_id="g", row=0, n=6, seed=0)))
        while not running("sleep 4792"):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        assert boxes_of_this_process() > 0
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        left = boxes_of_this_process()
        await close_providers()
        return left

    assert asyncio.run(cancel()) == 0
    assert running("sleep 4792") == []
