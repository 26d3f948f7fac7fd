from datetime import datetime
from pathlib import Path

from agentloop.api.recipe import claimed_folder, find_config, run_folders
from agentloop.recipes import tiny


class _Clock(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 27, 12, 0, 0)


def test_runs_that_start_in_the_same_second_have_different_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agentloop.api.recipe.datetime", _Clock)
    with claimed_folder("a") as first, claimed_folder("a") as second, claimed_folder("a") as empty:
        for folder in (first, second):
            (folder / "file").touch()
        assert empty.is_dir()
    assert [folder.name for folder in run_folders("a")] == ["a-20261127-120000-2", "a-20261127-120000"]
    assert not empty.exists()


def test_a_folder_that_cannot_be_created_is_left_to_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    with claimed_folder("a") as folder:
        assert not folder.exists()


def test_files_of_built_in_recipes_need_no_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("recipes/tiny/sft.yaml") == Path(tiny.__file__).with_name("sft.yaml")
    assert find_config("recipes/tiny/none.yaml") == Path("recipes/tiny/none.yaml"), "the reader names what it misses"
    own = tmp_path / "recipes/tiny/sft.yaml"
    own.parent.mkdir(parents=True)
    own.touch()
    assert find_config("recipes/tiny/sft.yaml").resolve() == own
