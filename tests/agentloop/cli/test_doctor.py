"""`agentloop doctor` says what works, and its exit code says whether what was asked for works."""

import json
import tomllib
from pathlib import Path

import pytest

from agentloop.cli import doctor as doctor_module
from agentloop.cli import main
from agentloop.cli.doctor import Finding
from agentloop.engines import ENGINES
from agentloop.sandboxes import LEVELS

pytestmark = pytest.mark.slow


@pytest.fixture
def findings(monkeypatch):
    """Let doctor find these lines."""
    found = [
        Finding("engines", "vllm", "missing", "not installed", "No engine vllm.", "pip install 'agentloop[vllm]'"),
        Finding("sandboxes", "slots", "ok", "files are out of sight"),
        Finding("packages", "train", "untested", "torch 9.0", versions={"torch": "9.0"}),
    ]

    async def examine():
        return found

    monkeypatch.setattr(doctor_module, "examine", examine)
    return found


def exit_code(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    return ended.value.code


def test_a_report_of_this_machine_has_a_line_for_everything(capsys):
    assert exit_code("--json") == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    kinds = {name: ENGINES.get(name) for name in ENGINES}
    # Other tests of this process may have added engines.
    gpu_engines = {name for name, kind in kinds.items() if kind.runs_on_gpus and ".testing." not in kind.target}
    assert {"python", "memory", "disk", "gpu", "train", "hf", "fa2", *gpu_engines, *LEVELS} <= set(found)
    assert found["train"]["versions"]["torch"]
    assert found["none"]["state"] == "ok"
    assert all(each["cost"] or each["fix"] for each in found.values() if each["state"] != "ok")


@pytest.mark.parametrize(
    ("names", "code"),
    [([], 0), (["vllm"], 1), (["slots"], 0), (["slots", "vllm"], 1), (["torch"], 0), (["train"], 0)],
)
def test_the_exit_code_depends_on_the_named_features(findings, names, code):
    assert exit_code(*names) == code


def test_a_line_names_cost_and_fix(findings, capsys):
    exit_code("vllm")
    shown = capsys.readouterr().out
    assert "missing  vllm" in shown
    assert "No engine vllm." in shown
    assert "Fix: pip install 'agentloop[vllm]'" in shown
    assert "slots" not in shown


def test_an_unknown_name_is_refused_with_the_nearest_one(findings, capsys):
    assert exit_code("vlm") == 2
    assert "Did you mean 'vllm'" in capsys.readouterr().err


def test_a_machine_without_the_train_extra_is_reported(monkeypatch, tmp_path, capsys):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert exit_code("train") == 1
    assert "No module named 'torch'" in capsys.readouterr().out
    assert exit_code("hf", "--json") == 1
    assert "see the line train" in json.loads(capsys.readouterr().out)[0]["fix"]


def test_every_extra_has_a_line():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for_developers = {"all", "docs", "dev"}
    extras = set(project["optional-dependencies"]) - for_developers
    assert extras - {"docker", "sglang", "vllm"} == set(doctor_module.EXTRAS)
