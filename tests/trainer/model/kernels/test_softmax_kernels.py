import os
import subprocess
import sys
from pathlib import Path


def test_triton_kernels_match_float64():
    """In a process of its own: Triton decides when it is imported whether it interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    script = Path(__file__).with_name("softmax_kernels.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "equal", done.stderr
