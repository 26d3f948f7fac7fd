"""A folder of stages takes only the settings of its runs."""

import pytest

from benchmarks.runs.pretrained_stages import check_settings


def test_a_folder_refuses_other_settings_than_those_of_its_runs(tmp_path):
    given = {"config": "smollm2", "sft_config": "smollm2", "sft": [], "rl": ["run.steps=40"]}
    check_settings(tmp_path, given)
    check_settings(tmp_path, given)
    with pytest.raises(SystemExit, match=r"has runs with other settings: .*'rl': \['run.steps=40'\]"):
        check_settings(tmp_path, given | {"rl": ["run.steps=60"]})
    check_settings(tmp_path, given)


def test_a_folder_with_runs_but_without_settings_is_taken(tmp_path):
    (tmp_path / "sft-0.seconds").write_text("12.5")
    check_settings(tmp_path, {"config": "smollm2"})
