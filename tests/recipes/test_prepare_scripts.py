import importlib
import runpy
import sys
from pathlib import Path

import datasets
import pytest

from agentloop import recipes
from agentloop.errors import UserError
from agentloop.recipes.smollm2 import prepare as smollm2

SCRIPTS = sorted(path.parent.name for path in Path(recipes.__file__).parent.glob("*/prepare.py"))


@pytest.mark.parametrize("recipe", SCRIPTS)
def test_help_shows_what_the_script_writes(recipe, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["prepare", "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"agentloop.recipes.{recipe}.prepare").main()
    assert ended.value.code == 0
    assert f"python -m agentloop.recipes.{recipe}.prepare [FOLDER]" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("recipe", [recipe for recipe in SCRIPTS if recipe != "smollm2"])  # it needs no hub
def test_a_hub_that_cannot_be_reached_is_one_sentence(recipe, capsys, monkeypatch, tmp_path):
    def unreachable(name: str, *args: object, **options: object) -> None:
        raise ConnectionError("Couldn't reach it on the Hub")

    monkeypatch.delitem(sys.modules, f"agentloop.recipes.{recipe}.prepare", raising=False)  # runpy warns of it
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setattr(sys, "argv", ["prepare", str(tmp_path / "data")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"agentloop.recipes.{recipe}.prepare", run_name="__main__")
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "cannot be read from the Hugging Face hub: Couldn't reach it on the Hub\n" in message
    assert message.count("\n") == 1


def test_packages_that_read_weights_are_named_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"Run: pip install gguf accelerate$"):
        smollm2.write_model(tmp_path)
