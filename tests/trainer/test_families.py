"""Every causal language model of transformers trains as plain transformers would, or is refused by name."""

from pathlib import Path

import pytest
import transformers
from huggingface_hub.errors import StrictDataclassError

from tests.support import family_table
from tests.support.family_outcomes import outcome
from tests.support.small_models import FAMILIES, NOT_BUILT, save_small_model

pytestmark = pytest.mark.slow

_IS_MEASURED = transformers.__version__ == family_table.transformers_version()
_REFUSALS = "cannot be trained", "cannot be loaded", "the learner does not support"


@pytest.fixture(scope="module")
def documented() -> dict[str, set[str]]:
    """Families of the table in docs/reference/models.md, by what was measured."""
    found = family_table.read()
    exact = {name for name, result in found["families"].items() if result["learner"] == {}}
    return {"Exact": exact, "Refused": found["families"].keys() - exact, "Untested": set(found["not_built"])}


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in NOT_BUILT])
def test_a_family_is_trained_exactly_or_refused(family: str, tmp_path: Path, documented: dict[str, set[str]]):
    refusal = outcome(family, tmp_path)
    assert refusal is None or any(text in refusal for text in _REFUSALS), refusal
    if family in family_table.EXACT_LATER and not _IS_MEASURED:
        assert refusal is not None
        return
    assert family in documented["Exact" if refusal is None else "Refused"], "run scripts/model-families"


@pytest.mark.parametrize("family", NOT_BUILT)
def test_a_family_that_cannot_be_made_small_is_named(family: str, tmp_path: Path, documented: dict[str, set[str]]):
    assert family in FAMILIES
    assert family in documented["Untested"], "run scripts/model-families"
    # Once it can be built, it belongs to the others. What it raises is transformers' own.
    with pytest.raises((AttributeError, ImportError, RuntimeError, StrictDataclassError, ValueError)):
        save_small_model(family, tmp_path)


def test_the_documentation_names_the_families_of_the_measured_version(documented: dict[str, set[str]]):
    named = documented["Exact"] | documented["Refused"] | documented["Untested"]
    assert named == set(FAMILIES) if _IS_MEASURED else named > set(FAMILIES)
