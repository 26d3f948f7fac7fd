"""The path of a new user, from the wheel to plain transformers, as scripts/walk takes it."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parent.parent


def test_a_new_user_reaches_the_end(tmp_path):
    walked = tmp_path / "walk"
    command = [sys.executable, _ROOT / "scripts" / "walk", walked]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert "continue with: agentloop train config.yaml run.folder=runs/walk\n" in done.stdout
    assert "playing: the trained model of runs/walk" in done.stdout
    assert Image.open(walked / "view.png").size == (1280, 720)
    assert (walked / "exported" / "config.json").is_file()
