import pytest

from agentloop.config.loading import load_config
from agentloop.config.old_keys import REMOVED, RENAMED, advice, updated
from agentloop.config.run import RunConfig
from agentloop.errors import UserError

OLD = {"renamed": {"run.length": "run.steps", "tools.max": "tools.limit"}, "removed": {"learner.early": "delete it."}}


def test_a_renamed_key_names_its_successor():
    assert advice("run.length", **OLD) == "The key 'run.length' has a new name: write 'run.steps'."
    assert "'tools.limit'" in advice("tools.3.max", **OLD)


def test_a_removed_key_says_what_to_do():
    assert advice("learner.early", **OLD) == "The key 'learner.early' was removed: delete it."
    assert advice("learner.late", **OLD) is None


def test_the_config_of_an_earlier_run_reads_under_todays_keys():
    before = {"run.length": 5, "tools.max.a": 1, "learner.early": False, "learner.earlier": 2}
    assert updated(before, **OLD) == {"run.steps": 5, "tools.limit.a": 1, "learner.earlier": 2}


@pytest.mark.parametrize("key", [*RENAMED, *REMOVED])
def test_an_old_key_on_the_command_line_is_refused_with_its_advice(sums, key):
    with pytest.raises(UserError) as caught:
        load_config(RunConfig, sums / "config.yaml", [f"{key}=1"])
    assert advice(key) in str(caught.value)
