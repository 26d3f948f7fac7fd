import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_triton_kernels_match_float64():
    """Use a new process: Triton decides at import whether it interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    script = Path(__file__).with_name("softmax_kernels.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "equal", done.stderr
