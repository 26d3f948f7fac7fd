"""The real programs inside of boxes: each works on a Harbor task, and leaves exactly the tokens that were sampled."""

import asyncio

import pytest

from agentloop import AgentLoop, StopReason
from agentloop.boxes.shared import close_providers
from agentloop.envs.agent.harnesses.running import HARNESSES
from agentloop.envs.harbor.agent import HarborAgent
from agentloop.envs.harbor.env import tasks
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from tests.envs.agent.conftest import program_of
from tests.support.harbor_tasks import make_task
from tests.support.scripted_programs import SCRIPTS, Editor, assert_trained_once

__all__ = ["program_of"]

pytestmark = pytest.mark.slow

TEST = "#!/bin/sh\nif grep -qx new /app/a.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
INSTRUCTION = "Replace old by new in a.txt."


@pytest.mark.parametrize("name", sorted(HARNESSES))
def test_a_program_in_a_box_edits_a_file_and_its_tokens_are_those_sampled(name, program_of, tmp_path):
    """The image is this machine's own root directory, which the box sees below a layer of its own."""
    folder = make_task(tmp_path / "t", steps={"one": {"instruction": INSTRUCTION, "test": TEST}})
    (folder / "steps/one/workdir").mkdir()
    (folder / "steps/one/workdir/a.txt").write_text("old\n")
    renderer = renderer_for(build_tokenizer())
    engine = Editor(renderer, SCRIPTS[name])
    engine.work = "/app"

    async def episode():
        env = HarborAgent(
            next(tasks(str(folder))),
            harness=name,
            program=program_of(HARNESSES[name]),
            provider="rootfs",
            provider_options={"memory_mb": 4096, "storage_mb": 512},
            images={"*": "/"},
        )
        try:
            return await AgentLoop(engine, renderer).run(env, trajectory_id="t-0", group_id="t", seed=0)
        finally:
            await close_providers()

    trajectory = asyncio.run(episode())
    assert (trajectory.stop_reason, trajectory.error, trajectory.reward) == (StopReason.COMPLETED, None, 1.0)
    assert_trained_once([trajectory, *trajectory.branches], engine.sampled)
