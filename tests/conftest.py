"""`--no-skips`, which `make test` passes: what was not run was not tested."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips", action="store_true", help="fail when a test was skipped or no test of the vLLM engine ran"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[_VLLM_TESTS] = {item.nodeid for item in items if item.get_closest_marker("vllm")}


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not session.config.getoption("--no-skips") or exitstatus != pytest.ExitCode.OK:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", [])
    passed = {report.nodeid for report in reporter.stats.get("passed", [])}
    if skipped or not passed & session.config.stash[_VLLM_TESTS]:
        reporter.write_line(f"\n--no-skips: {len(skipped)} skipped; tests of the vLLM engine that ran: ")
        reporter.write_line(f"{len(passed & session.config.stash[_VLLM_TESTS])}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_VLLM_TESTS = pytest.StashKey[set[str]]()
