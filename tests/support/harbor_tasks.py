"""Small Harbor tasks whose scripts need nothing but a shell."""

import json
from pathlib import Path
from typing import Any

HELLO = '#!/bin/sh\nif [ "$(cat /app/hello)" = world ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
"""Tests of the task to write `world` to /app/hello."""
SOLVE = "#!/bin/sh\necho world > /app/hello\n"


def make_task(
    folder: Path,
    *,
    test: str = HELLO,
    solve: str | None = SOLVE,
    instruction: str = "Write world to /app/hello.",
    steps: dict[str, dict[str, Any]] | None = None,
    **tables: Any,
) -> Path:
    """Write a task and return its folder. `steps` maps names to `test`, `solve`, `instruction` and keys of [[steps]].

    `tables` are tables of task.toml. The image is named `base`.
    """
    (folder / "environment").mkdir(parents=True)
    environment = {"docker_image": "base", "workdir": "/app", "network_mode": "no-network"}
    environment |= tables.pop("environment", {})
    config: dict[str, Any] = {"environment": environment, **tables}
    parts = {"": {"test": test, "solve": solve, "instruction": instruction}}
    if steps is not None:
        parts = {f"steps/{name}": step for name, step in steps.items()}
        known = ("test", "solve", "instruction")
        config["steps"] = [
            {"name": name, **{key: value for key, value in step.items() if key not in known}}
            for name, step in steps.items()
        ]
    for name, part in parts.items():
        _write(folder / name / "instruction.md", part.get("instruction", instruction))
        _write(folder / name / "tests/test.sh", part.get("test", test))
        if part.get("solve", solve) is not None:
            _write(folder / name / "solution/solve.sh", part.get("solve", solve))
    _write(folder / "task.toml", _toml(config))
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _toml(config: dict[str, Any]) -> str:
    lines = [f"{key} = {_inline(value)}" for key, value in config.items()]
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)
