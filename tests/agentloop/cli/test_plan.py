import json
import shlex
from pathlib import Path

import pytest

from agentloop.cli import main

_TINY = "tiny"


def _plan(*arguments: object) -> int:
    try:
        main(["plan", *map(str, arguments)])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_plan_shows_the_recipes_layout_the_best_ones_and_why_others_do_not_fit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    assert _plan(_TINY, "--gpus", 4, "--gpu", "L40S", "learner.token_budget=384") == 0
    shown = capsys.readouterr().out
    assert "4 x L40S" in shown
    assert "The layout of the recipe (fsdp DP4): it fits, about " in shown
    assert "Best (fsdp DP4)" in shown
    assert "learner.backend=fsdp" in shown
    assert "does not divide" in shown


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--gpus", 4], ["--gpus", 16, "--engine-gpus", 8], ["--gpus", 1]])
def test_the_printed_command_trains_with_the_best_layout(capsys, arguments):
    assert _plan(_TINY, *arguments, "learner.token_budget=384", "--backend", "fsdp") == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  agentloop train")]
    _, command, *words = shlex.split(line)
    assert f"placement.n_gpus={arguments[1]}" in words
    with pytest.raises(SystemExit) as ended:
        main([command, *words, "--dry-run", "placement.gpu=H200"])
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    assert f"{arguments[1]} GPUs" in " ".join(shown.out.split()), shown.out[-1500:]


def test_plan_counts_the_weights_of_an_engine_in_fp8(capsys):
    arguments = ["model=Qwen/Qwen3-8B", "--gpus", 4, "--backend", "fsdp"]
    assert _plan(_TINY, *arguments) == 0
    assert "\n  engine weights 15.3 GiB\n" in capsys.readouterr().out
    assert _plan(_TINY, *arguments, "engine={name: vllm, options: {quantization: fp8}}") == 0
    assert "\n  engine weights 8.8 GiB in FP8\n" in capsys.readouterr().out


def test_plan_as_json_has_every_layout_with_its_settings(capsys):
    assert _plan(_TINY, "--gpus", 2, "--json", "--backend", "fsdp") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fitting"]
    for estimate in found["fitting"]:
        assert estimate["settings"]["learner.backend"] == "fsdp"
        assert estimate["training"]["total"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "H20000"], "Did you mean 'H200'"),
        (["--gpu", "H200:0"], "Unknown GPU 'H200:0'"),
        (["--mean-tokens", -5], "Invalid value for '--mean-tokens'"),
        (["--gpus", 2, "--engine-gpus", 2], "leaves none of 2 GPUs to train on"),
        (["model=./nowhere"], "There is no model folder"),
    ],
)
def test_invalid_arguments_are_explained(capsys, arguments, message):
    assert _plan(_TINY, *arguments) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_an_impossible_layout_of_the_recipe_is_reported(capsys, tmp_path: Path):
    assert _plan(_TINY, "--gpus", 3, "learner.backend=megatron", "learner.tensor_parallel=2") == 0
    assert "impossible: " in capsys.readouterr().out


def test_plan_reports_when_engine_and_learner_take_turns(capsys):
    fits, sleeps = "it fits, about", "take turns: a sleeping engine keeps 2.0 GiB"
    for memory, override, takes_turns in (("6", "", False), ("4.7", "", True), ("6", "placement.sleep=true", True)):
        _plan(_TINY, "--gpus", 1, "--gpu", f"RTX-4090:{memory}", "--backend", "fsdp", *filter(None, [override]))
        shown = capsys.readouterr().out
        assert fits in shown
        assert (sleeps in shown) == takes_turns
    _plan(_TINY, "--gpus", 1, "--gpu", "RTX-4090:4.7", "--backend", "fsdp", "placement.sleep=false")
    assert "The engine next to the learner has no room" in capsys.readouterr().out
