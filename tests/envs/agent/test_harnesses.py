"""The real programs: each edits a file through its own tools, and leaves exactly the tokens that were sampled."""

import asyncio
import json
import re
from array import array
from pathlib import Path

import pytest

from agentloop import AgentLoop, Limits, StopReason
from agentloop.engines.base import FinishReason, Generation
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.engines.token_listeners import listener
from agentloop.envs.agent.harnesses.running import HARNESSES
from agentloop.envs.agent.program import AgentProgram
from agentloop.errors import UserError
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for

pytestmark = pytest.mark.slow

TITLE = "Generate a title"
ROW = {
    "messages": [{"role": "user", "content": "Replace old by new in a.txt."}],
    "files": {"a.txt": "old\n", "docs/b.txt": "kept\n"},
}
CHECK = ["sh", "-c", "grep -qx new a.txt && grep -qx kept docs/b.txt"]
SCRIPTS = {
    "claude-code": [
        ("Read", {"file_path": "WORK/a.txt"}),
        ("Edit", {"file_path": "WORK/a.txt", "old_string": "old", "new_string": "new"}),
    ],
    "codex": [("exec_command", {"cmd": "sed -i s/old/new/ a.txt"})],
    "mini-swe-agent": [
        ("bash", {"command": "sed -i s/old/new/ a.txt"}),
        ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
    ],
    "opencode": [
        ("read", {"filePath": "WORK/a.txt"}),
        ("edit", {"filePath": "WORK/a.txt", "oldString": "old", "newString": "new"}),
    ],
    "pi": [("read", {"path": "a.txt"}), ("edit", {"path": "a.txt", "edits": [{"oldText": "old", "newText": "new"}]})],
    "qwen-code": [
        ("read_file", {"file_path": "WORK/a.txt"}),
        ("edit", {"file_path": "WORK/a.txt", "old_string": "old", "new_string": "new"}),
    ],
}
CONVERSATIONS = {"opencode": 2}  # with one for the title


class Editor(ScriptedEngine):
    """Writes the calls of a script, streamed token by token, each with a logprob of its own."""

    def __init__(self, renderer, script):
        super().__init__([[0]])
        self.renderer, self.script = renderer, script
        self.sampled = []

    def turn_after(self, prompt):
        if TITLE in prompt:
            return "A title"
        number = prompt.count("<|im_start|>assistant") - 1
        if number == len(self.script):
            return "I replaced it."
        work = re.search(r"/\S*/agentloop-agent-\w+/work", prompt)
        name, arguments = self.script[number]
        call = json.dumps({"name": name, "arguments": arguments}).replace("WORK", work[0] if work else "WORK")
        return f"<think>\nStep {number}.\n</think>\n\n<tool_call>\n{call}\n</tool_call>"

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        said = self.turn_after(self.renderer.decode(prompt))
        ids = [*self.renderer.encoder.encode_rendered(said), self.renderer.stop_token_ids[0]]
        if hear := listener():
            for token in ids:
                hear([token])
                await asyncio.sleep(0)
        number = len(self.sampled)
        logprobs = array("f", [-number - i / 1024 for i in range(len(ids))])
        turn = Generation(array("i", ids), logprobs, array("i", [number] * len(ids)), FinishReason.STOP)
        self.sampled.append((list(prompt), turn))
        return turn


def play(engine, **options):
    loop = AgentLoop(engine, engine.renderer, limits=Limits(max_turns=20, max_tokens=1 << 20, max_seconds=120))
    return asyncio.run(loop.run(AgentProgram(ROW, **options), trajectory_id="g-0", group_id="g", seed=3))


def assert_trained_once(streams, sampled):
    found = {}
    for stream in streams:
        for segment in stream.sampled_segments():
            number = int(stream.versions[segment.start])
            prompt, turn = sampled[number]
            assert number not in found, "a turn carries loss in two streams"
            found[number] = stream
            assert stream.token_ids[: segment.start].tolist() == prompt
            assert stream.token_ids[segment.start : segment.end].tolist() == list(turn.ids)
            assert stream.logprobs[segment.start : segment.end].tolist() == list(turn.logprobs)
        assert int(stream.loss_mask.sum()) == stream.num_sampled
    assert sorted(found) == list(range(len(sampled)))


@pytest.fixture
def program_of(program_from_npm, python_with):
    """Install the newest version of a harness that was tried, and return its program."""

    def made(harness):
        if harness.install.startswith("pip install "):
            python = python_with(harness.name, *harness.install.removeprefix("pip install ").split())
            return str(Path(python).with_name(harness.program))
        return program_from_npm(harness.install.removeprefix("npm install -g "), harness.program)

    return made


@pytest.mark.parametrize("name", sorted(HARNESSES))
def test_a_program_edits_a_file_and_its_tokens_are_those_sampled(name, program_of):
    engine = Editor(renderer_for(build_tokenizer()), SCRIPTS[name])
    program = program_of(HARNESSES[name])
    trajectory = play(engine, harness=name, program=program, check=CHECK)
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.COMPLETED, None)
    assert trajectory.reward == 1.0
    streams = [trajectory, *trajectory.branches]
    assert_trained_once(streams, engine.sampled)
    ends_with_a_call = name == "mini-swe-agent"
    assert max(stream.num_turns for stream in streams) == len(SCRIPTS[name]) + (not ends_with_a_call)
    assert len(streams) == CONVERSATIONS.get(name, 1)
    assert ends_with_a_call or "I replaced it." in trajectory.answer


def test_a_sub_agent_is_a_conversation_of_its_own(program_of):
    harness = HARNESSES["claude-code"]
    renderer = renderer_for(build_tokenizer())
    edit = Editor(renderer, SCRIPTS["claude-code"])
    task = {"description": "edit", "prompt": "SUBTASK: edit a.txt.", "subagent_type": "general-purpose"}
    main = Editor(renderer, [("Agent", {**task, "run_in_background": False})])

    class Both(Editor):
        def turn_after(self, prompt):
            asked = prompt.split("<|im_start|>assistant")[0]
            return (edit if "SUBTASK" in asked else main).turn_after(prompt)

    engine = Both(renderer, [])
    trajectory = play(engine, harness="claude-code", program=program_of(harness), check=CHECK)
    assert trajectory.reward == 1.0
    streams = [trajectory, *trajectory.branches]
    assert_trained_once(streams, engine.sampled)
    assert sorted(stream.num_turns for stream in streams) == [2, 3]


def test_a_program_of_another_version_stops_the_run(tmp_path):
    old = tmp_path / "codex"
    old.write_text("#!/bin/sh\necho codex-cli 0.1.2\n")
    old.chmod(0o755)
    engine = Editor(renderer_for(build_tokenizer()), [])
    with pytest.raises(UserError, match=r"is 'codex-cli 0\.1\.2', and the harness codex starts >=0\.169,<1: "):
        play(engine, harness="codex", program=str(old), check=CHECK)
