"""Write Harbor task folders whose files are uploaded when a step begins, so that all tasks share one image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentloop.errors import UserError

DEFAULT_IMAGE = "debian:stable-slim"
_TEST = """#!/bin/sh
# What the agent left in its environment chooses nothing here.
unset LD_PRELOAD LD_LIBRARY_PATH BASH_ENV ENV
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
cd /app || cd /
all=0
held=0
check() {{
    all=$((all + 1))
    if "$@"; then held=$((held + 1)); else echo "wrong: $*"; fi
}}
# A link could lead to the answers.
same() {{ [ ! -L "$2" ] && [ -f "$2" ] && cmp -s "/tests/expected/$1" "$2"; }}
{checks}
if [ $held = $all ]; then reward=1; else reward=0; fi
echo "{{\\"reward\\": $reward, \\"checks_held\\": $held}}" > /logs/verifier/reward.json
"""


@dataclass(slots=True, frozen=True, kw_only=True)
class Step:
    """One instruction, the files that it begins with, a solution, and what must hold afterwards."""

    instruction: str
    solution: str
    """Lines of shell that solve it in /app."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files below /app."""
    executable: Sequence[str] = ()
    """Those of `files` that can be run."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """Files below /app that must be there with this text."""
    conditions: Sequence[str] = ()
    """Further commands that must succeed in /app, such as `[ -d folder ]`."""


def write_task(
    folder: Path,
    steps: Sequence[Step],
    *,
    image: str = DEFAULT_IMAGE,
    separate: bool = False,
    agent_seconds: float = 600.0,
    metadata: Mapping[str, str | int] | None = None,
) -> Path:
    """Write a task and return its folder. With `separate`, tests run in a box of their own, which gets /app.

    Raises `UserError` if the folder exists.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already: choose another folder, or remove it.")
    names = [f"step-{number}" for number in range(1, len(steps) + 1)]
    for name, step in zip(names, steps, strict=True):
        _write_step(folder / "steps" / name, step)
    (folder / "environment").mkdir()
    (folder / "task.toml").write_text(_toml(folder.name, names, image, separate, agent_seconds, metadata or {}))
    return folder


def _write_step(folder: Path, step: Step) -> None:
    _write(folder / "instruction.md", step.instruction)
    for name, text in step.files.items():
        _write(folder / "workdir" / name, text, is_executable=name in step.executable)
    checks = []
    for number, (name, text) in enumerate(step.expected.items()):
        _write(folder / "tests/expected" / str(number), text)
        checks.append(f"check same {number} {name}")
    checks += [f"check {condition}" for condition in step.conditions]
    _write(folder / "tests/test.sh", _TEST.format(checks="\n".join(checks)), is_executable=True)
    _write(folder / "solution/solve.sh", f"#!/bin/sh\nset -e\ncd /app\n{step.solution}\n", is_executable=True)


def _write(path: Path, text: str, *, is_executable: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if is_executable else 0o644)


def _toml(
    name: str,
    steps: Sequence[str],
    image: str,
    separate: bool,
    agent_seconds: float,
    metadata: Mapping[str, str | int],
) -> str:
    """Return task.toml. JSON of texts and numbers is TOML, too."""
    lines = ['schema_version = "1.4"']
    if separate:
        lines.append('artifacts = ["/app"]')
    lines += ["", "[task]", f"name = {json.dumps(f'agentloop/{name}')}", "", "[metadata]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in metadata.items()]
    lines += ["", "[agent]", f"timeout_sec = {agent_seconds}", "", "[verifier]", "timeout_sec = 60.0"]
    lines.append(f"environment_mode = {json.dumps('separate' if separate else 'shared')}")
    lines += ["", "[environment]", f"docker_image = {json.dumps(image)}", 'workdir = "/app"']
    lines += ['network_mode = "no-network"', "cpus = 1", "memory_mb = 512", "storage_mb = 256"]
    for step in steps:
        lines += ["", "[[steps]]", f"name = {json.dumps(step)}"]
        if step != steps[-1]:
            lines.append("min_reward = 1.0")
    return "\n".join(lines) + "\n"
