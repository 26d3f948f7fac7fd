"""Wrong arguments of the public functions end with one `UserError` before anything loads."""

from pathlib import Path

import pytest

import agentloop
from agentloop.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"tasks": "test"}, r"'tasks' of the function rollout must be of type Literal\['train', 'eval'\] \| None"),
        ({"samples": 1.5}, "'samples' of the function rollout must be of type int, got float"),
        ({"samples": "2"}, "'samples' .* got str"),
        ({"limit": 2.0}, r"'limit' .* of type int \| None, got float"),
        ({"limit": "2"}, "'limit' .* got str"),
        ({"threshold": "1"}, "'threshold' .* of type float, got str"),
        ({"step": 1.0}, "'step' .* got float"),
        ({"step": "1"}, "'step' .* got str"),
        ({"output": 3}, "'output' .* got int"),
        ({"step": 3}, "step is 3, which selects a model of a run"),
    ],
)
def test_arguments_of_a_rollout_have_their_types(arguments, error):
    with pytest.raises(UserError, match=error):
        agentloop.rollout("tiny", progress=False, **arguments)


@pytest.mark.parametrize("start", [agentloop.rollout, agentloop.train, agentloop.sft, agentloop.dpo])
@pytest.mark.parametrize("config", [None, 3, ["tiny"]])
def test_a_config_of_another_type_is_refused(start, config):
    with pytest.raises(UserError, match=r"The config is .*\. Pass a YAML file"):
        start(config)


@pytest.mark.parametrize("start", [agentloop.train, agentloop.sft, agentloop.dpo])
def test_resume_is_no_text(start):
    with pytest.raises(UserError, match=r"'resume' .* must be of type bool, got str"):
        start("tiny", resume="no")


@pytest.mark.parametrize("read", [agentloop.load_run, agentloop.read_trajectories])
@pytest.mark.parametrize("path", [None, 3, ["runs"], {"runs"}, object(), b"runs"])
def test_a_path_of_another_type_is_refused(read, path):
    with pytest.raises(UserError, match="must be of type str"):
        read(path)


def test_what_a_run_left_is_named_exactly(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").touch()
    run = agentloop.load_run(tmp_path)
    with pytest.raises(UserError, match=r"'step' of the function RunResult.trajectories .* got str"):
        run.trajectories("1")
    with pytest.raises(UserError, match=r"'split' .* of type Literal\['train', 'eval'\], got str"):
        run.trajectories(split="valid")
    with pytest.raises(UserError, match=r"'dtype' of the function RunResult.export .*'float16'"):
        run.export(tmp_path / "out", dtype="fp16")


def test_a_rollout_writes_only_to_folders(tmp_path: Path):
    (tmp_path / "taken").touch()
    with pytest.raises(UserError, match=r"taken cannot be written to: Not a directory. Set output to another folder"):
        agentloop.rollout("tiny", output=tmp_path / "taken", progress=False)


def test_a_tool_is_a_function():
    with pytest.raises(UserError, match="tool got int 3, not a function"):
        agentloop.tool(3)
