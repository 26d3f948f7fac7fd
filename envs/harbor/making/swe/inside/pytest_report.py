"""Plugin of pytest in boxes: writes a line for each phase of each test, and runs only those that plan.json chooses."""

import json
import os
from pathlib import Path

_file = open(os.environ.pop("AGENTLOOP_REPORT"), "a", buffering=1)  # noqa: SIM115 - as long as pytest runs
_chosen = json.loads(Path(__file__).parents[1].joinpath("plan.json").read_text()).get("chosen")


def _write(name, phase, outcome, report):  # type: ignore[no-untyped-def]
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else str(report.longrepr or "")
    _file.write(json.dumps([name, phase, outcome, message if outcome == "failed" else ""]) + "\n")


def pytest_collection_modifyitems(config, items):  # type: ignore[no-untyped-def]
    """Keep the tests that were chosen."""
    if _chosen is not None:
        wanted = set(_chosen)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]


def pytest_collectreport(report):  # type: ignore[no-untyped-def]
    """Write which files cannot be imported."""
    if report.failed:
        _write(report.nodeid, "collect", "failed", report)


def pytest_runtest_logreport(report):  # type: ignore[no-untyped-def]
    """Write what a test did; one that is expected to fail neither passes nor fails."""
    outcome = "expected" if hasattr(report, "wasxfail") else report.outcome
    _write(report.nodeid, report.when, outcome, report)
