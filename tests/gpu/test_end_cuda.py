"""The end of a process that trained on CUDA: torch has nothing to warn of."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny import save_tiny_qwen3

pytestmark = pytest.mark.gpu

TRAIN = """
import sys
from agentloop.config.learner import LearnerConfig
from agentloop.trainer.run.learners import create
from tests.support.tiny import random_batch

learner = create(LearnerConfig(model=sys.argv[1], device="cuda"))
learner.step(random_batch(4))
learner.close()
"""


def test_a_learner_leaves_no_process_group(tmp_path: Path):
    model = save_tiny_qwen3(tmp_path / "model")
    done = subprocess.run([sys.executable, "-c", TRAIN, str(model)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "destroy_process_group" not in done.stderr
