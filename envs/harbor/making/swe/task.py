"""Write the task of a bug: the source with it, its solution, and the tests that judge."""

from __future__ import annotations

import shutil
from pathlib import Path

from agentloop.envs.harbor.making.folder import task_toml, write_file
from agentloop.envs.harbor.making.swe.bugs import Bug
from agentloop.envs.harbor.making.swe.instruction import instruction_of
from agentloop.envs.harbor.making.swe.packages.layout import is_test
from agentloop.envs.harbor.making.swe.patch import patch_between
from agentloop.envs.harbor.making.swe.suite import APP, SPARE_SECONDS, Suite, write_tests

_STEP = "step-1"
_SOLVE = """#!/bin/sh
set -e
cd /app
patch -p1 < /solution/fix.patch
"""


def write_swe_task(folder: Path, suite: Suite, bug: Bug, *, seed: int, seconds: float, agent_seconds: float) -> None:
    """Write the task of a bug to a new folder; `seconds` is the time limit of its tests.

    The source is the only step's workdir, without the files of failing tests. Tests run in a separate box, which
    gets the package and nothing else of the agent's box.
    """
    package, candidate, layout = suite.package, bug.candidate, suite.package.layout
    step = folder / "steps" / _STEP
    sources = set(layout.sources(package.folder))
    hidden = {_file_of(test, package.folder) for test in bug.fail_to_pass} - sources
    for path in sorted(each for each in package.folder.rglob("*") if each.is_file()):
        name = str(path.relative_to(package.folder))
        if name not in hidden:
            _copy(path, step / "workdir" / name)
        if not any(name == part or name.startswith(f"{part}/") for part in layout.parts) or is_test(name):
            _copy(path, step / "tests/tree" / name)
    assert candidate.path in sources
    (step / "workdir" / candidate.path).write_bytes(candidate.changed)
    plan = suite.plan(seconds=seconds, chosen=[*bug.fail_to_pass, *bug.pass_to_pass])
    plan |= {"fail_to_pass": sorted(bug.fail_to_pass), "pass_to_pass": bug.pass_to_pass}
    write_tests(step / "tests", plan)
    write_file(step / "instruction.md", instruction_of(package, bug, suite.runner))
    write_file(step / "solution/solve.sh", _SOLVE, is_executable=True)
    fix = patch_between(candidate.changed, candidate.sound, candidate.path)
    (step / "solution/fix.patch").write_bytes(fix)
    (folder / "environment").mkdir()
    (folder / "task.toml").write_text(
        task_toml(
            folder.name,
            [_STEP],
            image=suite.machine.image,
            artifacts=[{"source": f"{APP}/{part}", "exclude": ["__pycache__", "*.pyc"]} for part in layout.parts],
            agent_seconds=agent_seconds,
            verifier_seconds=seconds + SPARE_SECONDS,
            cpus=suite.machine.cpus,
            memory_mb=suite.machine.memory_mb,
            storage_mb=suite.machine.storage_mb,
            env={"PYTHONPATH": f"{APP}/{layout.root}".removesuffix("/."), "PYTHONDONTWRITEBYTECODE": "1"},
            metadata={
                "seed": seed,
                "package": package.name,
                "version": package.version,
                "sha256": package.digest,
                "modifier": candidate.modifier,
                "file": candidate.path,
                "fail_to_pass": len(bug.fail_to_pass),
                "pass_to_pass": len(bug.pass_to_pass),
            },
        )
    )


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _file_of(test: str, folder: Path) -> str | None:
    """Return the file of a test: "tests/test_a.py::test" of pytest, "tests.test_a.Case.test" of unittest."""
    path = test.partition("::")[0]
    if (folder / path).is_file():
        return path
    parts = test.split(".")
    found = ("/".join(parts[:count]) + ".py" for count in range(len(parts), 0, -1))
    return next((name for name in found if (folder / name).is_file()), None)
