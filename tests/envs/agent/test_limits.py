"""A program that fails because a limit refused its request has left work: the check judges it."""

import pytest

from agentloop import AgentLoop, Limits, StopReason
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.agent.program import AgentProgram

pytestmark = pytest.mark.slow

PROGRAM = """#!/bin/sh
case "$*" in *version*) echo 0.24.0; exit;; esac
ask() { python3 - <<'END'
import os, urllib.request
body = b'{"messages": [{"role": "user", "content": "2 + 3?"}]}'
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
urllib.request.urlopen(request).read()
END
}
ask && touch one && ask && touch two && echo done
"""


@pytest.mark.parametrize(
    ("check", "max_turns", "reason", "reward"),
    [
        ("one", 1, StopReason.MAX_TURNS, 1.0),
        ("two", 1, StopReason.MAX_TURNS, 0.0),
        ("two", 2, StopReason.COMPLETED, 1.0),
    ],
)
async def test_work_until_a_limit_is_judged(renderer, tmp_path, check, max_turns, reason, reward):
    program = tmp_path / "python"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    task = {"messages": [{"role": "user", "content": "Work."}]}
    env = AgentProgram(task, harness="openai-agents", program=str(program), check=["test", "-e", check])
    loop = AgentLoop(
        ScriptedEngine([[*renderer.encode("hello"), renderer.stop_token_ids[0]]]),
        renderer,
        limits=Limits(max_turns=max_turns),
    )
    trajectory = await loop.run(env, trajectory_id="t")
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failures) == (reason, reward, {})
