"""Harbor itself, in a virtual environment of its own: it needs Python 3.12."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

REQUIREMENTS = (
    "certifi", "dirhash", "filelock", "httpx", "jinja2", "jsonschema", "litellm", "numpy", "omegaconf", "packaging",
    "pathspec", "pillow", "platformdirs", "pydantic>=2.12", "pyjwt", "python-dotenv", "pyyaml", "requests", "rich",
    "semver", "shortuuid", "tenacity", "toml", "typer",
)  # fmt: skip
"""What the parts of Harbor that we run import, and what agentloop itself needs."""


def harbor_python(python_with: Callable[..., str]) -> str:
    """An interpreter that has Harbor. Its own requirements can ask for a certifi that no index has yet."""
    base = sys.executable if sys.version_info[:2] == (3, 12) else python312()
    return python_with("harbor-0.25.0", *REQUIREMENTS, base=base, without_requirements_of="harbor==0.25.0")


def python312() -> str:
    candidates = [shutil.which("python3.12"), *Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12")]
    for each in filter(None, candidates):
        done = subprocess.run([each, "--version"], capture_output=True, text=True)
        if done.stdout.startswith("Python 3.12"):  # a shim of pyenv may not have it
            return str(each)
    raise AssertionError("Harbor needs Python 3.12, which is neither on PATH nor below ~/.pyenv: install it.")
