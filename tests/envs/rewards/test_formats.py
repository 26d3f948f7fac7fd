import pytest

from agentloop import AgentLoop, tool
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.rewards import load_reward
from agentloop.envs.tool_env import ToolEnv
from agentloop.errors import ToolError, UserError
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.tools.toolset import Toolset


@pytest.mark.parametrize(
    ("turn", "value"),
    [
        ("<think>hm</think> <answer>4</answer>\n", 1.0),
        (("hm", "<answer>4</answer>"), 1.0),
        ("<answer>4</answer><think>hm</think>", 0.0),
        ("<think>hm</think><answer>4", 0.0),
        ("<think>hm</think>4", 0.0),
        ("<think><answer>4</answer></think>", 0.0),
        (("<answer>4</answer>", ""), 0.0),
        ("<think>a</think><think>b</think><answer>4</answer>", 0.0),
        ("<think>hm</think> so <answer>4</answer>", 0.0),
        ("", 0.0),
    ],
)
async def test_tags_must_appear_once_in_order_and_alone(episode, turn, value):
    assert await load_reward("tags")(episode("calling", turn), {}) == value


async def test_tags_of_earlier_turns_are_checked(episode):
    reward = load_reward("tags", {"tags": ["answer"], "alone": False, "every_turn": ["think"]})
    assert await reward(episode(("hm", "calling"), "so <answer>4</answer>"), {}) == 1.0
    assert await reward(episode("calling", "so <answer>4</answer>"), {}) == 0.0


async def test_tags_of_an_episode_without_turns(episode):
    assert await load_reward("tags")(episode(), {}) == 0.0


@pytest.mark.parametrize(
    ("succeeded", "options", "value"),
    [
        ({}, {}, 0.0),
        ({"zoom": 1}, {}, 1.0),
        ({"zoom": 1}, {"tool": "search"}, 0.0),
        ({"zoom": 1, "search": 1}, {"calls": 4}, 0.5),
        ({"zoom": 9}, {"tool": "zoom", "calls": 3}, 1.0),
    ],
)
async def test_tool_bonus_rewards_calls(episode, succeeded, options, value):
    assert await load_reward("tool_bonus", options)(episode("a", succeeded=succeeded), {}) == value


async def test_turn_cost_is_charged_to_its_turn(episode):
    trajectory = episode("a", "b", "c")
    assert await load_reward("turn_cost", {"cost": 0.5})(trajectory, {}) == 0.0
    assert trajectory.turn_rewards == [0.0, -0.5, -0.5]


@tool(inline=True)
def half(number: int) -> str:
    """Half of an even number."""
    if number % 2:
        raise ToolError("That is odd.")
    return str(number // 2)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ('{"name": "half", "arguments": {"number": 4}}', 1.0),
        ('{"name": "half", "arguments": {"number": 3}}', 0.0),
        ('{"name": "half", "arguments": {"number": "four"}}', 0.0),
        ('{"name": "halve", "arguments": {"number": 4}}', 0.0),
        ("{broken", 0.0),
    ],
)
async def test_only_successful_calls_earn_the_bonus(call, value):
    """Through the loop: writing a call, or one that fails, is worth nothing."""
    tokenizer = build_tokenizer()
    turns = [f"<tool_call>\n{call}\n</tool_call><|im_end|>", "done<|im_end|>"]
    script = [tokenizer.backend_tokenizer.encode(turn, add_special_tokens=False).ids for turn in turns]
    loop = AgentLoop(ScriptedEngine(script), renderer_for(tokenizer))
    env = ToolEnv(
        {"messages": [{"role": "user", "content": "Halve."}]},
        toolset=Toolset([half]),
        reward=load_reward("tool_bonus", {"tool": "half"}),
    )
    assert (await loop.run(env)).reward == value


@pytest.mark.parametrize("calls", [0, -1])
def test_a_bonus_needs_a_call(calls):
    with pytest.raises(UserError, match=f"`calls` of tool_bonus must be at least 1, got {calls}"):
        load_reward("tool_bonus", {"calls": calls})
