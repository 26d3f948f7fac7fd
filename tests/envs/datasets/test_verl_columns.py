from agentloop import tool
from agentloop.envs.datasets.verl_columns import unused_agents
from agentloop.envs.registry import make_env
from agentloop.envs.tool_env import ToolEnv
from agentloop.tools.toolset import Toolset


@tool
def look() -> str:
    """Look."""
    return "nothing"


@tool
def wait() -> str:
    """Wait."""
    return "done"


def _env(toolset, **extra_info):
    return make_env(ToolEnv, {"messages": [], "extra_info": extra_info}, toolset=toolset)


def test_a_row_has_the_tools_of_its_tool_selection():
    toolset = Toolset([look, wait])
    selected = _env(toolset, tool_selection=["wait", "other"]).toolset
    assert list(selected.tools) == ["wait"]
    assert _env(toolset, tool_selection=["wait"]).toolset is selected
    assert _env(toolset, tool_selection=[]).toolset is toolset
    assert _env(toolset).toolset is toolset


def test_agents_that_would_play_otherwise_in_verl_are_named():
    rows = [{"agent_name": name, "reward_model": {}} for name in ("tool_agent", "single_turn_agent", "mine", "mine")]
    other, without_tools = unused_agents(rows, ["look"])
    assert "agent_name is 'mine' in 2 rows, but has no effect" in other
    assert "agent_name is 'single_turn_agent' in 1 rows" in without_tools
    assert len(unused_agents(rows, [])) == 1
    assert not unused_agents([{"agent_name": "mine"}], [])  # a column of another dataset
