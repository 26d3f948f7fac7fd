"""The pages for beginners work as they are written: their files beside a model, and each of their commands."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FILE = re.compile(r'^```\w+ title="([\w.]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", *(f"docs/start/{page.name}" for page in (DOCS / "start").iterdir())])
def test_the_steps_of_a_page_work(page, tmp_path):
    text = (ROOT / page).read_text()
    for name, content in _FILE.findall(text):
        (tmp_path / name).write_text(content)
    (tmp_path / "Qwen3-0.6B").symlink_to(str(files("agentloop.recipes.tiny") / "checkpoint"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    commands = [line for block in _SHELL.findall(text) for line in block.splitlines()]
    # The commands of these pages install packages, or train for minutes.
    assert commands or page.endswith(("install.md", "pretrained.md"))
    for command in commands:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_every_extra_is_explained():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`.*?`) \|", (DOCS / "start" / "install.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == set(extras)


def test_symptoms_are_parts_of_messages():
    folders = ("agentloop", "boxes", "envs", "sandboxes", "tools", "trainer")
    code = "".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    page = (DOCS / "troubleshooting.md").read_text().partition("## The run learns nothing")[0]
    symptoms = re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE)
    assert len(symptoms) > 15
    assert [symptom for symptom in symptoms if symptom not in code] == []
