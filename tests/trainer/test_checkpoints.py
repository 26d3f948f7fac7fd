import pytest

from agentloop.trainer.checkpoints import RunState, latest_checkpoint, remove_unfinished, save_checkpoint


class Learner:
    """Writes one file, or dies half way."""

    def __init__(self, dies=False):
        self.dies = dies

    def save(self, folder):
        folder.mkdir()
        (folder / "weights").write_text("half")
        if self.dies:
            raise KeyboardInterrupt
        (folder / "weights").write_text("whole")


def state(step):
    return RunState(step, step + 1, {"num_tasks": 4, "num_taken": step * 2}, {"a": {"b": 1}})


def test_the_newest_is_found_with_its_state(tmp_path):
    for step in (9, 10, 1_000_000):
        save_checkpoint(tmp_path, Learner(), state(step), keep_last=5)
    folder, found = latest_checkpoint(tmp_path)
    assert found == state(1_000_000)
    assert (folder / "weights").read_text() == "whole"


def test_only_the_last_ones_are_kept(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, Learner(), state(step), keep_last=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003"]


def test_no_checkpoint_is_none(tmp_path):
    assert latest_checkpoint(tmp_path) is None


def test_a_save_that_dies_leaves_the_one_before(tmp_path):
    save_checkpoint(tmp_path, Learner(), state(1), keep_last=1)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, Learner(dies=True), state(2), keep_last=1)
    assert latest_checkpoint(tmp_path)[1] == state(1)


def test_what_a_kill_left_is_neither_found_nor_kept(tmp_path):
    save_checkpoint(tmp_path, Learner(), state(1), keep_last=1)
    (tmp_path / "step_000002.tmp" / "learner").mkdir(parents=True)
    (tmp_path / "step_000002.tmp" / "state.json").write_text("{}")
    (tmp_path / "step_000003").mkdir()  # being removed: its state is gone already
    assert latest_checkpoint(tmp_path)[1] == state(1)
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
