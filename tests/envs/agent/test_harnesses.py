"""The real programs: each edits a file through its own tools, and leaves exactly the tokens that were sampled."""

import pytest

from agentloop import StopReason
from agentloop.envs.agent.harnesses.running import HARNESSES
from agentloop.errors import UserError
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from tests.support.scripted_programs import CHECK, SCRIPTS, Editor, assert_trained_once, play

pytestmark = pytest.mark.slow

CONVERSATIONS = {"opencode": 2}  # with one for the title


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


def test_a_program_of_another_version_stops_the_run(tmp_path):
    old = tmp_path / "codex"
    old.write_text("#!/bin/sh\necho codex-cli 0.1.2\n")
    old.chmod(0o755)
    engine = Editor(renderer_for(build_tokenizer()), [])
    with pytest.raises(UserError, match=r"is 'codex-cli 0\.1\.2', but the harness codex supports >=0\.169,<1: "):
        play(engine, harness="codex", program=str(old), check=CHECK)
