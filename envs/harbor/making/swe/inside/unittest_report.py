"""Runs tests with unittest in boxes: writes a line for each test, and runs only those that plan.json chooses."""

import json
import os
import sys
import traceback
import unittest
from pathlib import Path

_file = open(os.environ.pop("AGENTLOOP_REPORT"), "a", buffering=1)  # noqa: SIM115 - as long as the tests run
_plan = json.loads(Path(__file__).parents[1].joinpath("plan.json").read_text())


def _write(name, phase, outcome, error=None):  # type: ignore[no-untyped-def]
    message = "".join(traceback.format_exception_only(error[0], error[1])).strip() if error else ""
    _file.write(json.dumps([name, phase, outcome, message]) + "\n")


class Result(unittest.TestResult):
    """Writes what happens to each test."""

    def addSuccess(self, test):  # type: ignore[no-untyped-def]
        _write(test.id(), "call", "passed")

    def addFailure(self, test, err):  # type: ignore[no-untyped-def]
        _write(test.id(), "call", "failed", err)

    addError = addFailure

    def addSubTest(self, test, subtest, err):  # type: ignore[no-untyped-def]
        if err is not None:
            _write(test.id(), "call", "failed", err)


def tests_of(suite):  # type: ignore[no-untyped-def]
    """Yield the tests of a suite, and of those in it."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def main() -> None:
    """Run the tests of plan.json."""
    here = os.getcwd()
    sys.path[0] = here
    loader = unittest.TestLoader()
    found = []
    for path in _plan["tests"]:
        folder, pattern = (path, "*test*.py") if Path(path).is_dir() else (str(Path(path).parent), Path(path).name)
        found += tests_of(loader.discover(folder, pattern, top_level_dir=here))
    chosen = None if _plan.get("chosen") is None else set(_plan["chosen"])
    suite = unittest.TestSuite()
    for test in found:
        if type(test).__name__ == "_FailedTest":
            _write(test.id(), "collect", "failed")
        elif chosen is None or test.id() in chosen:
            suite.addTest(test)
    suite.run(Result())


if __name__ == "__main__":
    main()
