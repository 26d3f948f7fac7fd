import pytest

from agentloop.config_loading import load_config
from agentloop.errors import UserError
from agentloop.trainer.run_config import RunConfig


@pytest.mark.parametrize("override", ["workers.count=2", "workers.address=auto"])
def test_settings_of_actors_need_their_kind(sums, override):
    with pytest.raises(UserError, match=r"set workers\.kind=ray too"):
        load_config(RunConfig, sums / "config.yaml", [override])
    load_config(RunConfig, sums / "config.yaml", [override, "workers.kind=ray"])
