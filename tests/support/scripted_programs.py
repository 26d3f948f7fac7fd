"""A scripted engine for agent programs, and the check that they leave the tokens which it sampled."""

import asyncio
import json
import re
from array import array

from agentloop import AgentLoop, Limits
from agentloop.engines.base import FinishReason, Generation
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.engines.token_listeners import listener
from agentloop.envs.agent.program import AgentProgram

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
    "langgraph": [("shell", {"command": "sed -i s/old/new/ a.txt"})],
    "mini-swe-agent": [
        ("bash", {"command": "sed -i s/old/new/ a.txt"}),
        ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
    ],
    "openai-agents": [("shell", {"command": "sed -i s/old/new/ a.txt"})],
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


class Editor(ScriptedEngine):
    """Writes the calls of a script, streamed token by token, each with a logprob of its own."""

    def __init__(self, renderer, script):
        super().__init__([[0]])
        self.renderer, self.script = renderer, script
        self.sampled = []
        self.work = "WORK"

    def turn_after(self, prompt):
        if TITLE in prompt:
            return "A title"
        number = prompt.count("<|im_start|>assistant") - 1
        if number == len(self.script):
            return "I replaced it."
        return self.call(number, prompt)

    def call(self, number, prompt):
        if work := re.search(r"/\S*/agentloop-agent-\w+/work", prompt):
            self.work = work[0]
        name, arguments = self.script[number]
        call = json.dumps({"name": name, "arguments": arguments}).replace("WORK", self.work)
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


def play(engine, row=ROW, **options):
    loop = AgentLoop(engine, engine.renderer, limits=Limits(max_turns=20, max_tokens=1 << 20, max_seconds=120))
    return asyncio.run(loop.run(AgentProgram(row, **options), trajectory_id="g-0", group_id="g", seed=3))


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
