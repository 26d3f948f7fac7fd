"""Models with the newest transformers. The other tests run with the one that vLLM for CPUs takes."""

import pytest

from tests.support import family_table
from tests.support.other_versions import run_tests, version_in

pytestmark = pytest.mark.slow

_TESTS = (
    "agentloop/rendering",  # first: it has texts that are nested too deeply, and others raise Python's limit
    "trainer/test_families.py",
    "trainer/model/recurrent",
    "trainer/learner/checks",
    "trainer/run/test_families_learn.py",
    "agentloop/engines/hf",
    "agentloop/experts",
)


def test_models_are_exact_with_the_newest_transformers(newest_transformers):
    version = version_in(newest_transformers, "transformers")
    assert version == family_table.transformers_version(), "run scripts/model-families with this version"
    run_tests(newest_transformers, "not ecosystem and not vllm", *_TESTS)
