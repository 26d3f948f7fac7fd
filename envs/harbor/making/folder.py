"""Write Harbor task folders whose files are uploaded when a step begins, so that all tasks share one image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentloop.errors import UserError

DEFAULT_IMAGE = "debian:stable-slim"
TEST_BEGIN = """#!/bin/sh
# What the agent left in its environment chooses nothing here.
unset LD_PRELOAD LD_LIBRARY_PATH BASH_ENV ENV
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
cd /app || cd /
"""
"""First lines of every test.sh."""
_CHECKS = """\
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
    """One instruction, its initial files, a solution, and the conditions to check afterwards."""

    instruction: str
    solution: str
    """Shell lines that solve it in /app."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files below /app."""
    executable: Sequence[str] = ()
    """Names in `files` that are executable."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """Files below /app that must exist with this text."""
    conditions: Sequence[str] = ()
    """Further commands that must succeed in /app, such as `[ -d folder ]`."""


def make_folder(folder: Path, *, may_exist: bool = False) -> None:
    """Create a folder for tasks. Raises `UserError` if it cannot be created, or exists and may not."""
    try:
        folder.mkdir(parents=True, exist_ok=may_exist)
    except FileExistsError as error:  # with `may_exist`, it is a file
        raise UserError(f"{folder} exists already: choose another folder, or remove it.") from error
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> UserError:
    """Return the error for a folder of tasks that cannot be written to."""
    return UserError(f"The folder {folder} cannot be written to: {error.strerror}. Choose another folder.")


def write_task(
    folder: Path,
    steps: Sequence[Step],
    *,
    image: str = DEFAULT_IMAGE,
    separate: bool = False,
    agent_seconds: float = 600.0,
    metadata: Mapping[str, str | int] | None = None,
) -> Path:
    """Write a task and return its folder. With `separate`, tests run in a separate box, which gets /app.

    Raises `UserError` if the folder exists.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already: choose another folder, or remove it.")
    names = [f"step-{number}" for number in range(1, len(steps) + 1)]
    for name, step in zip(names, steps, strict=True):
        _write_step(folder / "steps" / name, step)
    (folder / "environment").mkdir()
    (folder / "task.toml").write_text(
        task_toml(
            folder.name,
            names,
            image=image,
            artifacts=["/app"] if separate else [],
            agent_seconds=agent_seconds,
            metadata=metadata,
        )
    )
    return folder


def _write_step(folder: Path, step: Step) -> None:
    write_file(folder / "instruction.md", step.instruction)
    for name, text in step.files.items():
        write_file(folder / "workdir" / name, text, is_executable=name in step.executable)
    checks = []
    for number, (name, text) in enumerate(step.expected.items()):
        write_file(folder / "tests/expected" / str(number), text)
        checks.append(f"check same {number} {name}")
    checks += [f"check {condition}" for condition in step.conditions]
    write_file(folder / "tests/test.sh", TEST_BEGIN + _CHECKS.format(checks="\n".join(checks)), is_executable=True)
    write_file(folder / "solution/solve.sh", f"#!/bin/sh\nset -e\ncd /app\n{step.solution}\n", is_executable=True)


def write_file(path: Path, text: str, *, is_executable: bool = False) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if is_executable else 0o644)


def task_toml(
    name: str,
    steps: Sequence[str],
    *,
    image: str,
    artifacts: Sequence[str | Mapping[str, object]] = (),
    agent_seconds: float = 600.0,
    verifier_seconds: float = 60.0,
    cpus: int = 1,
    memory_mb: int = 512,
    storage_mb: int = 256,
    env: Mapping[str, str] | None = None,
    metadata: Mapping[str, str | int] | None = None,
) -> str:
    """Return task.toml. With artifacts, tests run in a separate box, which gets them."""
    lines = ['schema_version = "1.4"']
    if artifacts:
        lines.append(f"artifacts = {_value(list(artifacts))}")
    lines += ["", "[task]", f"name = {_value(f'agentloop/{name}')}", "", "[metadata]"]
    lines += [f"{key} = {_value(value)}" for key, value in (metadata or {}).items()]
    lines += ["", "[agent]", f"timeout_sec = {agent_seconds}"]
    lines += ["", "[verifier]", f"environment_mode = {_value('separate' if artifacts else 'shared')}"]
    lines += ["", "[environment]", f"docker_image = {_value(image)}", 'workdir = "/app"']
    lines += ['network_mode = "no-network"', f"cpus = {cpus}", f"memory_mb = {memory_mb}", f"storage_mb = {storage_mb}"]
    if env:
        lines.append(f"env = {_value(env)}")
    for step in steps:
        lines += ["", "[[steps]]", f"name = {_value(step)}"]
        if step != steps[-1]:
            lines.append("min_reward = 1.0")
        # Steps do not inherit the time limit of the task's tests.
        lines += ["", "[steps.verifier]", f"timeout_sec = {verifier_seconds}"]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """Return a value as TOML, which accepts JSON except objects."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
