"""Run the tests of a package in a box, and write the reward if plan.json says which must pass.

This file is copied to /tests with plan.json, with the report for the runner, and, to judge an agent, with `tree`: all
files of the source folder but those of the package. They replace what the agent left there. Only the standard library
is imported, in isolated mode.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

APP = Path("/app")
TESTS = Path("/tests")
REPORTS = TESTS / "reports"
LOGS = Path("/logs/verifier")
WORKER = 1000
"""The user of the tests: code of the package can neither write the reward nor end this script."""
MODULES = {"pytest": ["-m", "pytest"], "unittest": [str(REPORTS / "unittest_report.py")]}
PYTEST = ["-p", "pytest_report", "-p", "no:cacheprovider", "-p", "no:randomly", "-o", "addopts=", "-q", "--tb=short"]


def main() -> None:
    """Write report.json, and reward.json to judge an agent."""
    plan = json.loads((TESTS / "plan.json").read_text())
    if (TESTS / "tree").is_dir():
        restore(plan)
    LOGS.chmod(0o755)  # the worker writes nothing there
    report = run(plan)
    (LOGS / "report.json").write_text(json.dumps(report))
    if "fail_to_pass" in plan:
        passed = set(report["passed"])
        shares = {name: share(plan[name], passed) for name in ("fail_to_pass", "pass_to_pass")}
        reward = float(all(each == 1.0 for each in shares.values()))
        (LOGS / "reward.json").write_text(json.dumps({"reward": reward, **shares}))


def share(wanted: list, passed: set) -> float:
    """Return how many of the wanted tests passed, from 0 to 1."""
    return sum(name in passed for name in wanted) / len(wanted) if wanted else 1.0


def restore(plan: dict) -> None:
    """Keep the package as the agent left it; everything else is as it was at first."""
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        for number, part in enumerate(plan["parts"]):
            if not is_linked(part):
                shutil.move(APP / part, Path(scratch, str(number)))
        shutil.rmtree(APP, ignore_errors=True)
        APP.mkdir(exist_ok=True)
        for number, part in enumerate(plan["parts"]):
            kept = Path(scratch, str(number))
            if kept.exists():
                (APP / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(kept, APP / part)
    for path in sorted(APP.rglob("*"), reverse=True):
        is_test = re.fullmatch(plan["test_file"], str(path.relative_to(APP)))
        if path.is_symlink() or (path.is_file() and (is_test or path.suffix == ".pyc")):
            path.unlink()
    shutil.copytree(TESTS / "tree", APP, dirs_exist_ok=True)


def is_linked(part: str) -> bool:
    """Return whether a part is missing or reached through a link."""
    path = APP / part
    return not path.exists() or path.resolve() != path


def run(plan: dict) -> dict:
    """Run the tests as the worker, and return the names of those that passed and what the others say."""
    as_worker: dict[str, Any] = {"user": WORKER, "group": WORKER, "extra_groups": []} if can_be_worker() else {}
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        report = Path(scratch, "report")
        report.touch()
        home = Path(scratch, "home")
        home.mkdir()
        for path in (Path(scratch), report, home, APP, *APP.rglob("*")):
            if as_worker:
                os.chown(path, WORKER, WORKER, follow_symlinks=False)
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(home),
            "PYTHONPATH": f"{REPORTS}:{APP / plan['root']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": str(plan["hash_seed"]),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "AGENTLOOP_REPORT": str(report),
        }
        runner = plan["runner"]
        command = [sys.executable, *MODULES[runner], *(PYTEST if runner == "pytest" else []), *plan["tests"]]
        process = subprocess.Popen(
            command, cwd=APP, env=environment, stdin=subprocess.DEVNULL, start_new_session=True, **as_worker
        )
        timed_out = False
        try:
            process.wait(plan["seconds"])
        except subprocess.TimeoutExpired:
            timed_out = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if as_worker:  # also those that left the group
            kill = "import os, signal; os.kill(-1, signal.SIGKILL)"
            subprocess.run([sys.executable, "-I", "-c", kill], check=False, **as_worker)
        return {"timed_out": timed_out, **collected(report.read_text(errors="replace"))}


def can_be_worker() -> bool:
    """Return whether the box has other users than root."""
    try:
        return subprocess.run(["/bin/true"], user=WORKER, group=WORKER, extra_groups=[]).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def collected(text: str) -> dict:
    """Return what the lines of a report say: a test passed if its call did, and nothing of it failed."""
    passed: set[str] = set()
    failed: dict[str, str] = {}
    broken: dict[str, str] = {}
    for line in text.splitlines():
        try:
            name, phase, outcome, message = json.loads(line)
        except ValueError:  # written by the package
            continue
        if phase == "collect":
            broken[name] = message
        elif outcome == "failed":
            failed.setdefault(name, message)
        elif outcome == "passed" and phase == "call":
            passed.add(name)
    return {"passed": sorted(passed - set(failed)), "failed": failed, "broken": broken}


if __name__ == "__main__":
    main()
