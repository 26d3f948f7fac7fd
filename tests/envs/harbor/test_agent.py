"""Programs that work inside of the boxes of Harbor tasks, with the model behind one forwarded port."""

import asyncio

import pytest

from agentloop import AgentLoop, Limits, StopReason
from agentloop.boxes.shared import close_providers
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.harbor.agent import HarborAgent
from agentloop.envs.harbor.env import tasks
from agentloop.errors import UserError
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from tests.support.harbor_tasks import HELLO, make_task

pytestmark = pytest.mark.slow

ASK = """
ask() {
    address=${OPENAI_BASE_URL#http://}
    port=${address#*:}
    port=${port%%/*}
    body="{\\"model\\": \\"m\\", \\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"$1\\"}]}"
    printf 'POST /%s/chat/completions HTTP/1.1\\r\\nHost: box\\r\\nAuthorization: Bearer %s\\r\\n' \\
        "${address#*/}" "$OPENAI_API_KEY" > /tmp/request
    printf 'Content-Type: application/json\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n%s' \\
        "${#body}" "$body" >> /tmp/request
    rm -f /tmp/answer
    # The server ends a connection whose sender has ended.
    { cat /tmp/request; while [ ! -s /tmp/answer ]; do sleep 0.1; done; sleep 0.2; } |
        nc 127.0.0.1 "$port" > /tmp/answer
    grep -q '200 OK' /tmp/answer || { cat /tmp/answer >&2; exit 3; }
    sed -n 's/.*"content":"\\([^"]*\\)".*/\\1/p' /tmp/answer
}
"""
"""A function of a shell that asks the model a question and prints its answer."""
WRITE = 'ask "$(head -c 40)" > /app/hello\n'
"""Ask the model for the instruction, and write what it says to the file that the tests read."""


def sampled(trajectory):
    return [trajectory.ids[place] for each in trajectory.sampled_segments() for place in range(each.start, each.end)]


PROVIDERS = ["rootfs", pytest.param("docker", marks=pytest.mark.docker)]


def play(folder, tree, source, *answers, provider="rootfs", limits=None, name="agent.sh", **options):
    """Play an episode of a shell program that is uploaded to /opt. The model says `answers`."""
    script = folder.parent / name
    script.write_text(f"#!/bin/sh\n{ASK}{source}")
    script.chmod(0o755)
    renderer = renderer_for(build_tokenizer())
    turns = [[*renderer.encoder.encode_rendered(answer), renderer.stop_token_ids[0]] for answer in answers]
    options = {"command": f"sh /opt/{name}", **options} if "harness" not in options else options

    async def episode():
        loop = AgentLoop(ScriptedEngine(turns), renderer, limits=Limits(**(limits or {})))
        env = HarborAgent(
            next(tasks(str(folder))),
            uploads={str(script): f"/opt/{name}"},
            provider=provider,
            provider_options={"memory_mb": 256, "storage_mb": 64} if provider == "rootfs" else None,
            images={"*": str(tree)},
            **options,
        )
        try:
            return await loop.run(env, trajectory_id="t-0", group_id="t", seed=0)
        finally:
            await close_providers()

    return asyncio.run(episode()), turns


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_program_in_a_box_without_a_network_asks_the_model(tmp_path, tree, provider):
    found, turns = play(make_task(tmp_path / "t"), tree, WRITE, "world", provider=provider)
    assert (found.stop_reason, found.error, found.reward) == (StopReason.COMPLETED, None, 1.0)
    assert sampled(found) == turns[0]
    assert found.messages[0]["content"] == "Write world to /app/hello."
    assert found.metrics["env/seconds_starting_box"] > 0


def test_work_that_the_tests_refuse_has_reward_zero(tmp_path, tree):
    found, _ = play(make_task(tmp_path / "t"), tree, WRITE, "earth")
    assert (found.stop_reason, found.reward, found.failures) == (StopReason.COMPLETED, 0.0, {})


def test_the_program_runs_once_for_each_step(tmp_path, tree):
    steps = {"one": {"instruction": "First.", "test": HELLO}, "two": {"instruction": "Second.", "test": HELLO}}
    found, turns = play(make_task(tmp_path / "t", steps=steps), tree, WRITE, "world")
    assert (found.error, found.reward) == (None, 1.0)
    streams = sorted([found, *found.branches], key=lambda stream: stream.messages[0]["content"])
    assert [stream.messages[0]["content"] for stream in streams] == ["First.", "Second."]
    assert [sampled(stream) for stream in streams] == [turns[0], turns[0]]


def test_a_program_that_fails_fails_its_episode(tmp_path, tree):
    found, _ = play(make_task(tmp_path / "t"), tree, WRITE + "echo broken >&2; exit 7\n", "world")
    assert (found.stop_reason, found.reward, found.failures) == (StopReason.ENV_ERROR, None, {"env": 1})
    assert "the agent ended with status 7: broken" in found.error


def test_work_is_judged_when_the_time_of_the_task_ends_the_program(tmp_path, tree):
    folder = make_task(tmp_path / "t", agent={"timeout_sec": 2.0})
    found, _ = play(folder, tree, WRITE + "sleep 60\n", "world")
    assert (found.stop_reason, found.error, found.reward) == (StopReason.COMPLETED, None, 1.0)


def test_work_is_judged_when_a_limit_refuses_a_call(tmp_path, tree):
    found, _ = play(make_task(tmp_path / "t"), tree, WRITE + "ask again\n", "world", "again", limits={"max_turns": 1})
    assert (found.stop_reason, found.reward) == (StopReason.MAX_TURNS, 1.0)


def test_work_is_judged_when_the_time_of_the_episode_ends(tmp_path, tree):
    found, _ = play(make_task(tmp_path / "t"), tree, WRITE + "sleep 60\n", "world", limits={"max_seconds": 4.0})
    assert (found.stop_reason, found.reward) == (StopReason.MAX_SECONDS, 1.0)


CODEX = """
[ "$1" = --version ] && echo codex-cli 0.169.1 && exit
[ "$HOME" = /tmp/agentloop-home ] && [ "$CODEX_HOME" = "$HOME/.codex" ] || exit 5
OPENAI_BASE_URL=$(sed -n 's/^base_url = "\\(.*\\)"/\\1/p' "$CODEX_HOME/config.toml")
"""


def test_a_harness_finds_its_configuration_in_the_box(tmp_path, tree):
    task = make_task(tmp_path / "t")
    found, turns = play(task, tree, CODEX + WRITE, "world", name="codex", harness="codex", program="/opt/codex")
    assert (found.error, found.reward) == (None, 1.0)
    assert sampled(found) == turns[0]


def test_an_image_without_the_program_fails_the_episode_and_another_version_the_run(tmp_path, tree):
    task = make_task(tmp_path / "t")
    found, _ = play(task, tree, "", "unused", harness="codex")
    assert found.failures == {"env": 1}
    assert "the image has no program 'codex' for the harness codex: install it there (npm install" in found.error
    with pytest.raises(UserError, match=r"/opt/codex is 'codex-cli 0\.1\.2', but the harness codex supports"):
        play(task, tree, "echo codex-cli 0.1.2", "unused", name="codex", harness="codex", program="/opt/codex")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either `harness`, a known program, or `command`"),
        ({"harness": "codex", "command": "sh"}, "either `harness`, a known program, or `command`"),
        ({"command": "sh", "program": "/opt/x"}, "belong to a `harness`"),
        ({"harness": "none"}, "'none' is not a harness. Choose one of"),
        ({"harness": "mini-swe-agent", "compact_at": 9}, "does not compact its history"),
        ({"command": "sh", "uploads": {"/nowhere": "/opt/x"}}, "'/nowhere', which does not exist"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        HarborAgent({"id": "t", "task": "t"}, **options)


def test_rows_without_a_task_are_refused():
    with pytest.raises(UserError, match="has no task: use the rows of"):
        HarborAgent({"id": "t"}, command="sh")
