"""Every result says which code and command it comes from, and a page names it."""

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from benchmarks import results_file


@pytest.mark.parametrize("file", sorted(results_file.RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_every_result_has_its_commit_and_command(file: Path):
    environment = json.loads(file.read_text())["environment"]
    assert environment["commit"]
    assert environment["command"]


def test_a_page_names_every_result():
    root = results_file.RESULTS.parents[1]
    pages = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("recipes/**/*.md")]
    # `train_step_*.json` names several.
    names = {name for page in pages for name in re.findall(r"\w[\w.*-]*\.json", page.read_text())}
    results = [file.name for file in results_file.RESULTS.glob("*.json")]
    assert [file for file in results if not any(fnmatchcase(file, name) for name in names)] == []


@pytest.mark.slow
def test_a_result_without_a_commit_is_not_written(monkeypatch, tmp_path):
    monkeypatch.setattr(results_file, "__file__", str(tmp_path / "results_file.py"))
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    monkeypatch.delenv("AGENTLOOP_COMMIT", raising=False)
    with pytest.raises(RuntimeError, match="AGENTLOOP_COMMIT"):
        results_file.commit()
    monkeypatch.setenv("AGENTLOOP_COMMIT", "abc1234")
    assert results_file.commit() == "abc1234"
