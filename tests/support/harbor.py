"""Harbor itself, in a virtual environment of its own: it needs Python 3.12."""

from collections.abc import Callable

from agentloop.envs.workers.interpreters import suitable_python
from agentloop.envs.workers.packages import Package

REQUIREMENTS = (
    "certifi", "dirhash", "filelock", "httpx", "jinja2", "jsonschema", "litellm", "numpy", "omegaconf", "packaging",
    "pathspec", "pillow", "platformdirs", "pydantic>=2.12", "pyjwt", "python-dotenv", "pyyaml", "requests", "rich",
    "semver", "shortuuid", "tenacity", "toml", "typer",
)  # fmt: skip
"""What the parts of Harbor that we run import, and what agentloop itself needs."""


def harbor_python(python_with: Callable[..., str]) -> str:
    """An interpreter that has Harbor. Its own requirements can ask for a certifi that no index has yet."""
    return python_with("harbor-0.25.0", *REQUIREMENTS, base=python312(), without_requirements_of="harbor==0.25.0")


def python312() -> str:
    return suitable_python("harbor", Package((), "harbor", (3, 12), (3, 12)))
