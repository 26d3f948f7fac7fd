"""The real programs start sub-agents: each is a conversation of its own, and each sampled token is trained once."""

import re

import pytest

from agentloop import StopReason
from agentloop.envs.agent.harnesses.running import HARNESSES
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from tests.support.scripted_programs import CHECK, SCRIPTS, TITLE, Editor, assert_trained_once, play

pytestmark = pytest.mark.slow

TASK = "SUBTASK: edit a.txt."
NEW = {"description": "edit", "prompt": TASK, "subagent_type": "general-purpose"}
START = {
    "claude-code": [("Agent", {**NEW, "run_in_background": False})],
    "codex": [
        ("multi_agent_v1__spawn_agent", {"message": TASK}),
        ("multi_agent_v1__wait_agent", {"targets": ["AGENT"], "timeout_ms": 120_000}),
    ],
    "opencode": [("task", {**NEW, "subagent_type": "general"})],
    "qwen-code": [("agent", {**NEW, "run_in_background": False})],
}


class Delegator(Editor):
    """Starts a sub-agent, which edits the file, and waits for its end."""

    def __init__(self, renderer, name):
        super().__init__(renderer, START[name])
        self.sub_agent = Editor(renderer, SCRIPTS[name])

    def turn_after(self, prompt):
        if TITLE in prompt:
            return "A title"
        asked = prompt.split("<|im_start|>assistant")[0]
        return self.sub_agent.turn_after(prompt) if TASK in asked else super().turn_after(prompt)

    def call(self, number, prompt):
        if number > len(self.script):  # codex asks once more if it hears late of the sub-agent's end
            return "I replaced it."
        started = re.search(r'"agent_id": ?"([^"]+)"', prompt)
        return super().call(number, prompt).replace("AGENT", started[1] if started else "AGENT")


@pytest.mark.parametrize("name", sorted(START))
def test_a_sub_agent_is_a_conversation_of_its_own(name, program_of):
    engine = Delegator(renderer_for(build_tokenizer()), name)
    trajectory = play(engine, harness=name, program=program_of(HARNESSES[name]), check=CHECK)
    assert (trajectory.stop_reason, trajectory.error, trajectory.reward) == (StopReason.COMPLETED, None, 1.0)
    streams = [trajectory, *trajectory.branches]
    assert_trained_once(streams, engine.sampled)
    titles = ["title"] if name == "opencode" else []
    kinds = [
        "sub-agent" if TASK in text.split("<|im_start|>assistant")[0] else "title" if TITLE in text else "main"
        for text in (engine.renderer.decode(stream.token_ids.tolist()) for stream in streams)
    ]
    assert sorted(kinds) == sorted(["main", "sub-agent", *titles])
    turns = dict(zip(kinds, (stream.num_turns for stream in streams), strict=True))
    assert len(START[name]) + 1 <= turns["main"] <= len(START[name]) + 1 + (name == "codex")
    assert turns["sub-agent"] == len(SCRIPTS[name]) + 1
