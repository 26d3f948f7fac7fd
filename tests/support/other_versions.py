"""Run tests of ours with another version of a package, which lies in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def version_in(folder: Path, package: str) -> str:
    """Return the version of a package that Python finds with `folder` first on its path."""
    script = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    command = [sys.executable, "-c", script, package]
    return subprocess.run(command, env=_with(folder), capture_output=True, text=True, check=True).stdout.strip()


def run_tests(folder: Path, marks: str, *tests: str) -> str:
    """Run tests with `folder` first on the path of Python, and return what pytest printed if all passed."""
    command = [sys.executable, "-m", "pytest", "-m", marks, *tests]
    done = subprocess.run(command, cwd=_ROOT / "tests", env=_with(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def _with(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(folder)}
