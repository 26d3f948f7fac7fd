import json
from pathlib import Path

import pytest

from agentloop.errors import UserError
from agentloop.trainer.run.folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.make()
    return folder


def test_metrics_are_read_back_line_by_line(folder):
    folder.append_metrics({"step": 1, "a": 0.1})
    folder.append_metrics({"step": 2, "a": 1e-9})
    assert folder.read_metrics() == [{"step": 1, "a": 0.1}, {"step": 2, "a": 1e-9}]


def test_incomplete_last_line_is_not_read(folder):
    folder.append_metrics({"step": 1})
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 2, "rew')
    assert folder.read_metrics() == [{"step": 1}]


def test_a_bad_line_of_metrics_is_named(folder):
    folder.metrics_file.write_bytes(b'{"step": 1}\n\xff\0\n{"step": 2}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is not JSON"):
        folder.read_metrics()


def test_files_of_later_steps_are_removed(folder):
    for step in (0, 1, 2, 3):
        folder.append_metrics({"step": step})
        (folder.trajectories / f"step_{step:06d}.jsonl.gz").touch()
    with folder.metrics_file.open("a") as file:
        file.write('{"ste')
    (folder.trajectories / "eval_000003.jsonl.gz").touch()
    (folder.trajectories / ".tmp-step_000000.jsonl.gz").touch()  # half written
    for step in (1, 2):
        (folder.exported / f"step_{step:06d}").mkdir(parents=True)
    folder.forget_after(1)
    assert [path.name for path in folder.exported.iterdir()] == ["step_000001"]
    assert [json.loads(line)["step"] for line in folder.metrics_file.read_text().splitlines()] == [0, 1]
    assert sorted(path.name for path in folder.trajectories.iterdir()) == [
        "step_000000.jsonl.gz",
        "step_000001.jsonl.gz",
    ]


def test_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not empty and not a run folder"):
        RunFolder(tmp_path).make()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_check_creates_nothing(tmp_path):
    RunFolder(tmp_path / "new" / "run").check()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not empty and not a run folder"):
        RunFolder(tmp_path).check()
    with pytest.raises(UserError, match=r"cannot be written to: Not a directory\. Set run\.folder"):
        RunFolder(tmp_path / "thesis.tex" / "run").check()
    with pytest.raises(UserError, match=r"The run folder /proc/run cannot be written to"):
        RunFolder(Path("/proc/run")).check()  # whose permissions let root write


def test_file_at_the_path_of_the_folder_is_a_user_error(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(UserError, match=r"cannot be written to.*run\.folder"):
        RunFolder(tmp_path / "run").make()


def test_files_of_others_stay(folder):
    names = ["notes.md", "step_000003.jsonl.gz.bak", "best_step_000003.jsonl.gz", "step_000003.json"]
    for name in names:
        (folder.trajectories / name).touch()
    folder.forget_after(1)
    assert sorted(path.name for path in folder.trajectories.iterdir()) == sorted(names)


def test_a_start_that_ended_before_it_wrote_its_config_can_be_repeated(folder):
    (folder.root / "run.lock").touch()
    folder.make()
