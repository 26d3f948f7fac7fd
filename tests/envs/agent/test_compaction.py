"""The real programs compact their histories: each sampled token is trained once, in its own conversation."""

import re

import pytest

from agentloop import StopReason
from agentloop.envs.agent.harnesses.running import HARNESSES, HarnessRun
from agentloop.errors import UserError
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from tests.support.scripted_programs import CHECK, ROW, SCRIPTS, TITLE, Editor, assert_trained_once, play

pytestmark = pytest.mark.slow

LONG = {**ROW, "files": {**ROW["files"], "long.txt": "".join(f"line {n} of a long file\n" for n in range(900))}}
READ = {
    "claude-code": ("Read", {"file_path": "WORK/long.txt"}),
    "codex": ("exec_command", {"cmd": "cat long.txt", "max_output_tokens": 20000}),
    "opencode": ("read", {"filePath": "WORK/long.txt"}),
    "pi": ("read", {"path": "long.txt"}),
    "qwen-code": ("read_file", {"file_path": "WORK/long.txt"}),
}
# Tokens between those of the first prompt and those of the second, which has the long file.
COMPACT_AT = {"claude-code": 34_000, "codex": 21_000, "opencode": 25_000, "pi": 9_000, "qwen-code": 45_000}
STREAMS = {
    "claude-code": 3,  # before and after, and the summary
    "codex": 3,  # the summary has no tools
    "opencode": 4,  # with the title; the summary shows the conversation as one message
    "pi": 2,  # it compacts when its last turn is over
    "qwen-code": 3,  # the summary continues the first; later it changes its system prompt once more
}
SUMMARY = "<summary>\n<state_snapshot>\nThe long file was READ BEFORE.\n</state_snapshot>\n</summary>"


class Summarizer(Editor):
    """Plays a script beyond a compaction, which it answers with a summary."""

    step = num_summaries = 0

    def turn_after(self, prompt):
        if TITLE in prompt:
            return "A title"
        asked = prompt.rsplit("<|im_start|>", 2)[-2]
        if self.step and not self.num_summaries and re.search("summar", asked, re.IGNORECASE):
            self.num_summaries += 1
            return SUMMARY
        if self.step == len(self.script):
            return "I replaced it."
        self.step += 1
        return self.call(self.step - 1, prompt)


@pytest.mark.parametrize("name", sorted(COMPACT_AT))
def test_a_compaction_begins_a_conversation_and_each_token_is_trained_once(name, program_of):
    script = [READ[name], SCRIPTS[name][0], *SCRIPTS[name]]
    engine = Summarizer(renderer_for(build_tokenizer()), script)
    trajectory = play(
        engine, LONG, harness=name, program=program_of(HARNESSES[name]), check=CHECK, compact_at=COMPACT_AT[name]
    )
    assert (trajectory.stop_reason, trajectory.error, trajectory.reward) == (StopReason.COMPLETED, None, 1.0)
    assert engine.num_summaries == 1
    streams = [trajectory, *trajectory.branches]
    assert_trained_once(streams, engine.sampled)
    texts = [engine.renderer.decode(stream.token_ids.tolist()) for stream in streams]
    assert any("line 800" in text for text in texts)
    assert any("READ BEFORE" in text and "line 800" not in text for text in texts) or name == "pi"
    assert len(streams) == STREAMS[name]


def test_a_program_that_does_not_compact_stops_the_run(tmp_path):
    with pytest.raises(UserError, match="mini-swe-agent does not compact"):
        HarnessRun("mini-swe-agent", program="true", compact_at=1000)
