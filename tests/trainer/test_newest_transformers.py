"""Models with the newest transformers. The other tests run with the one that vLLM for CPUs takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import family_table

pytestmark = pytest.mark.slow

_TESTS = Path(__file__).parents[1]
_PARTS = (
    "agentloop/rendering",  # first: it has texts that are nested too deeply, and others raise Python's limit
    "trainer/test_families.py",
    "trainer/model/recurrent",
    "trainer/learner/checks",
    "trainer/run/test_families_learn.py",
    "agentloop/engines/hf",
    "agentloop/experts",
)


def test_models_are_exact_with_the_newest_transformers(newest_transformers):
    environment = os.environ | {"PYTHONPATH": str(newest_transformers)}
    shown = [sys.executable, "-c", "import transformers; print(transformers.__version__)"]
    found = subprocess.run(shown, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    assert found == family_table.transformers_version(), "run scripts/model-families with this version"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not ecosystem and not vllm",
        *(str(_TESTS / part) for part in _PARTS),
    ]
    done = subprocess.run(command, cwd=_TESTS.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
