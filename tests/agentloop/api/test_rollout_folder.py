"""A rollout that was stopped goes on in its folder, with the episodes that an uninterrupted one plays."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import agentloop
from agentloop.api import evaluation
from agentloop.api.config import config_of
from agentloop.api.rollout_folder import RolloutFolder
from agentloop.cli import main
from agentloop.errors import UserError
from agentloop.types.trajectory import Trajectory
from agentloop.types.trajectory_io import read_jsonl, write_jsonl

pytestmark = pytest.mark.slow


@pytest.fixture
def stopped(sums, monkeypatch):
    """Play two of three tasks, each twice, in the folder `played`, but only the second episode of the second task."""
    monkeypatch.chdir(sums.parent)
    run_blocking = evaluation.run_blocking

    def interrupted(play, workers, requests, ended):
        run_blocking(play, workers, [requests[0], replace(requests[1], places=(1,))], ended)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "run_blocking", interrupted)
        with pytest.raises(KeyboardInterrupt):
            agentloop.rollout(sums, samples=2, output="played", progress=False)
    return sums


def _outcomes(trajectories) -> list[tuple[str, list[int], float]]:
    return [(each.trajectory_id, each.ids.tolist(), each.reward) for each in trajectories]


def test_a_resumed_rollout_has_the_episodes_of_one_that_was_not_stopped(stopped):
    kept = list(read_jsonl("played/trajectories.jsonl"))
    resumed = agentloop.rollout(stopped, samples=2, output="played", resume=True, progress=False)
    whole = agentloop.rollout(stopped, samples=2, output="whole", progress=False)
    assert [each.trajectory_id for each in whole.trajectories] == [f"rollout-{n}-{k}" for n in range(3) for k in (0, 1)]
    assert _outcomes(resumed.trajectories) == _outcomes(whole.trajectories)
    assert resumed.summary == whole.summary == {**resumed.summary, "tasks": 3.0, "episodes": 6.0}
    written = list(read_jsonl("played/trajectories.jsonl"))
    assert len(kept) == 3
    assert len(written) == 6
    assert _outcomes(written[:3]) == _outcomes(kept)
    assert json.loads((resumed.folder / "summary.json").read_text())["episodes"] == 6


def test_a_finished_rollout_plays_nothing_when_it_is_resumed_and_may_get_more_tasks(sums, monkeypatch):
    monkeypatch.chdir(sums.parent)
    first = agentloop.rollout(sums, limit=2, output="played", progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "run_blocking", None)
        again = agentloop.rollout(sums, limit=2, output="played", resume=True, progress=False)
    assert again.summary == first.summary
    more = agentloop.rollout(sums, output="played", resume=True, progress=False)
    assert [each.trajectory_id for each in more.trajectories] == ["rollout-0-0", "rollout-1-0", "rollout-2-0"]
    with pytest.raises(
        UserError, match=r"has played task 2, but now only 1 of the tasks are to be played\. Raise limit"
    ):
        agentloop.rollout(sums, limit=1, output="played", resume=True, progress=False)


def test_failed_episodes_are_played_again(sums, monkeypatch):
    monkeypatch.chdir(sums.parent)
    with (sums / "sums.py").open("a") as file:
        file.write(_REWARD)
    asked = {"env": {"reward": f"{sums}/sums.py:reward"}, "output": "played", "progress": False}
    failed = agentloop.rollout(sums, **asked)
    assert [each.reward for each in failed.trajectories] == [None, 0.25, 0.25]
    (sums / "mended").touch()
    mended = agentloop.rollout(sums, **asked, resume=True)
    assert mended.summary["judged"] == 3
    written = {each.trajectory_id: each.reward for each in read_jsonl("played/trajectories.jsonl")}
    assert written == {"rollout-0-0": 0.75, "rollout-1-0": 0.25, "rollout-2-0": 0.25}
    assert len(Path("played/trajectories.jsonl").read_text().splitlines()) == 3


_REWARD = """

from pathlib import Path

def reward(trajectory, task):
    if Path(__file__).with_name("mended").exists():
        return 0.75
    return 0.25 if trajectory.group_id != "rollout-0" else 1 / 0
"""


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"samples": 4}, r"samples: 2 -> 4"),
        ({"tasks": "train"}, r"tasks: eval -> train"),
        ({"sampling": {"temperature": 0.5}}, r"sampling\.temperature: 1\.0 -> 0\.5"),
        ({"env": {"reward": "exact_match"}}, r"env\.reward: 'last_number' -> 'exact_match'"),
        ({"limits": {"max_tokens": 256}}, r"limits\.max_tokens: 512 -> 256"),
        ({"run": {"seed": 5}}, r"run\.seed: 0 -> 5"),
    ],
)
def test_a_rollout_with_other_settings_is_refused(stopped, changed, named):
    before = (stopped.parent / "played" / "trajectories.jsonl").read_bytes()
    with pytest.raises(UserError, match=rf"was started with other settings: .*{named}.* Set them back to resume it"):
        agentloop.rollout(stopped, **{"samples": 2, "output": "played", "resume": True, "progress": False} | changed)
    assert (stopped.parent / "played" / "trajectories.jsonl").read_bytes() == before


def test_settings_of_the_machine_and_of_training_may_change(stopped):
    changed = {"engine": {"max_concurrency": 3}, "learner": {"lr": 0.5}, "algorithm": {"group_size": 2}}
    resumed = agentloop.rollout(stopped, samples=2, output="played", resume=True, progress=False, **changed)
    assert resumed.summary["episodes"] == 6


def test_the_summary_is_gone_until_the_resumed_rollout_has_ended(sums, monkeypatch):
    monkeypatch.chdir(sums.parent)
    agentloop.rollout(sums, limit=2, output="played", progress=False)

    def interrupted(play, workers, requests, ended):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "run_blocking", interrupted)
    with pytest.raises(KeyboardInterrupt):
        agentloop.rollout(sums, output="played", resume=True, progress=False)
    assert not Path("played/summary.json").exists()


def test_a_changed_dataset_is_refused(stopped):
    lines = [{"prompt": "What is 1 plus 1?", "answer": 2}] * 3
    (stopped / "other.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    changed = {"data": {"eval": str(stopped / "other.jsonl"), "eval_options": {}}}
    named = r"has played another task 1: the dataset was changed \(columns of the task that differ: .*\bmessages\b"
    with pytest.raises(UserError, match=named):
        agentloop.rollout(stopped, samples=2, output="played", resume=True, progress=False, **changed)


def test_replaced_weights_are_refused(stopped):
    original = (stopped / "model").resolve()
    (stopped / "model").unlink()
    shutil.copytree(original, stopped / "model")
    played = Path("played/trajectories.jsonl").read_bytes()
    weights = bytearray((original / "model.safetensors").read_bytes())
    weights[len(weights) // 2] ^= 1
    (stopped / "model" / "model.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match=r"The weights in .* are not those that played the rollout in played: they"):
        agentloop.rollout(stopped, samples=2, output="played", resume=True, progress=False)
    assert Path("played/trajectories.jsonl").read_bytes() == played
    shutil.copy(original / "model.safetensors", stopped / "model")
    assert agentloop.rollout(stopped, samples=2, output="played", resume=True, progress=False).summary["episodes"] == 6


def test_values_that_a_file_holds_as_text_do_not_make_another_task(sums, monkeypatch):
    monkeypatch.chdir(sums.parent)
    with (sums / "sums.py").open("a") as file:
        file.write(_ODD_ROWS)
    asked = {"data": {"eval": f"{sums}/sums.py:odd_rows", "eval_options": {}}, "output": "played", "progress": False}
    first = agentloop.rollout(sums, limit=1, **asked)  # keeps its rows, so that the next ones have other addresses
    resumed = agentloop.rollout(sums, resume=True, **asked)
    assert [first.summary["episodes"], resumed.summary["episodes"]] == [1, 2]


_ODD_ROWS = """

import datetime

def odd_rows():
    for answer in (2, 3):
        odd = {"check": lambda text: text, "day": datetime.date(2026, 1, 1), "nan": float("nan"), "words": {"a", "b"}}
        yield {"prompt": f"What is 1 plus {answer - 1}?", "answer": answer, **odd}
"""


def test_without_output_the_newest_rollout_with_this_config_is_resumed(sums, monkeypatch):
    monkeypatch.chdir(sums.parent)
    first = agentloop.rollout(sums, limit=1, progress=False)
    agentloop.rollout(sums, limit=1, sampling={"temperature": 0.5}, progress=False)
    assert agentloop.rollout(sums, resume=True, progress=False).folder.resolve() == first.folder.resolve()
    with pytest.raises(UserError, match=r"No rollout of sums with this config is below .*runs\. Set output"):
        agentloop.rollout(sums, sampling={"temperature": 0.7}, resume=True, progress=False)


def test_options_of_an_engine_are_not_written(sums, tmp_path):
    options = {"script": f"{sums}/sums.py:script", "max_model_len": 400}
    agentloop.rollout(sums, engine={"options": options}, limit=1, output=tmp_path / "played", progress=False)
    stored = json.loads((tmp_path / "played" / "rollout.json").read_text())
    assert stored["config"]["engine"]["options"] == {"max_model_len": 400}


@pytest.mark.parametrize("content", ["", "[]", '{"tasks": "eval"}'])
def test_a_damaged_description_is_named(stopped, content):
    (stopped.parent / "played" / "rollout.json").write_text(content)
    with pytest.raises(UserError, match=r"rollout\.json cannot be read .* Set output to another folder"):
        agentloop.rollout(stopped, samples=2, output="played", resume=True, progress=False)


def test_what_is_added_to_the_requests_to_a_service_must_stay(sums, tmp_path):
    folder = RolloutFolder(tmp_path)
    config, other = (
        config_of(sums, {"engine": {"name": "openai", "options": {"extra_body": {"reasoning_effort": effort}}}})
        for effort in ("low", "high")
    )
    folder.begin(config, "eval", 1, "")
    assert folder.changes(config, "eval", 1) == []
    assert folder.changes(other, "eval", 1) == ["engine.options.extra_body was changed"]
    assert "reasoning_effort" not in (tmp_path / "rollout.json").read_text()  # a body may have a key


def test_a_folder_without_a_rollout_cannot_be_resumed(sums, tmp_path):
    write_jsonl(tmp_path / "trajectories.jsonl", [Trajectory()])  # as before rollouts could be resumed
    with pytest.raises(UserError, match=r"has no rollout to resume: it has no rollout\.json\. Omit resume"):
        agentloop.rollout(sums, output=tmp_path, resume=True, progress=False)


def test_the_printed_command_resumes_an_interrupted_rollout(sums, monkeypatch, capsys):
    monkeypatch.chdir(sums.parent)
    run_blocking = evaluation.run_blocking

    def interrupted(play, workers, requests, ended):
        run_blocking(play, workers, requests[:1], ended)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "run_blocking", interrupted)
        with pytest.raises(SystemExit):
            main(["rollout", str(sums), "sampling.temperature=0.5", "-n", "2", "--limit=2", "--output", "the out"])
    words = shlex.split(capsys.readouterr().out.partition("continue with: ")[2].partition("\n")[0])
    assert words == [
        *("agentloop", "rollout", str(sums), "sampling.temperature=0.5"),
        *("--samples=2", "--limit=2", "--output=the out", "--resume"),
    ]
    with pytest.raises(SystemExit) as ended:
        main(words[1:])
    assert ended.value.code == 0
    assert len(list(read_jsonl("the out/trajectories.jsonl"))) == 4
