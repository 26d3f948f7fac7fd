"""Games that come with gymnasium, played through the loop."""

import pytest

from agentloop import StopReason
from agentloop.envs.gymnasium.env import GymnasiumEnv
from agentloop.envs.gymnasium.rows import seeds
from agentloop.errors import UserError

LAKE = {"id": "FrozenLake-v1", "options": {"is_slippery": False, "render_mode": "ansi"}}
NAMES = {"action_names": ["left", "down", "right", "up"]}
ROW = {"id": "a", "seed": 5, "messages": [{"role": "user", "content": "Get to G."}]}
PATH = ["down", "down", "right", "right", "down", "right"]


def told(trajectory):
    return [m["content"] for m in trajectory.messages if m["role"] in ("tool", "user")]


def test_frozen_lake_goal_is_rewarded(play):
    trajectory = play(GymnasiumEnv(ROW, **LAKE, **NAMES), [{"action": move} for move in PATH])
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert trajectory.reward == 1.0
    assert trajectory.turn_rewards == [0.0] * 5 + [1.0]
    assert told(trajectory)[:2] == ["Get to G.\n\n[S]FFF\nFHFH\nFFFH\nHFFG", "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"]
    assert trajectory.metrics["moves"] == 6
    assert trajectory.failures == {}


def test_hole_ends_the_game_without_reward(play):
    trajectory = play(GymnasiumEnv(ROW, **LAKE, **NAMES), [{"action": "right"}, {"action": "down"}])
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.COMPLETED, 0.0)


def test_game_time_limit_truncates(play):
    lake = {**LAKE, "options": {**LAKE["options"], "max_episode_steps": 2}}
    trajectory = play(GymnasiumEnv(ROW, **lake, **NAMES), [{"action": "left"}] * 5)
    assert trajectory.stop_reason is StopReason.ENV_TRUNCATED
    assert trajectory.num_turns == 2


def test_unusable_moves_give_feedback_and_are_counted(play):
    turns = [{"action": "jump"}, {"move": "down"}, "I will go down.", {"action": "DOWN"}]
    trajectory = play(GymnasiumEnv(ROW, **LAKE, **NAMES), turns, max_turns=4)
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.failures["model"] == 3
    jump, move, nothing, down = told(trajectory)[1:]
    assert "action: must be one of left, down, right, up, got 'jump'." in jump
    assert "move: unknown." in move
    assert "action: missing." in move
    assert "call the tool 'act'" in nothing
    assert down.startswith("  (Down)")
    assert trajectory.metrics["moves"] == 1


def test_text_moves_show_the_format_and_use_the_last_word(play):
    env = GymnasiumEnv(ROW, **LAKE, **NAMES, actions="text")
    assert env.toolset is None
    trajectory = play(env, ["Not left but down", "hm", *PATH[1:]])
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.COMPLETED, 1.0)
    assert told(trajectory)[0].endswith("\n\nAnswer with one of: left, down, right, up.")
    assert told(trajectory)[2] == "There is no action in this: answer with one of left, down, right, up."
    assert trajectory.failures["model"] == 1
    assert trajectory.metrics["invalid_moves"] == 1


def test_repeated_unusable_text_truncates(play):
    trajectory = play(GymnasiumEnv(ROW, **LAKE, **NAMES, actions="text", max_invalid_actions=2), ["hm"] * 5)
    assert (trajectory.stop_reason, trajectory.num_turns) == (StopReason.ENV_TRUNCATED, 2)
    assert trajectory.failures["model"] == 2


def test_moves_of_one_turn_run_in_order_until_the_end(play):
    def call(name):
        return f'<tool_call>\n{{"name": "act", "arguments": {{"action": "{name}"}}}}\n</tool_call>'

    trajectory = play(GymnasiumEnv(ROW, **LAKE, **NAMES), ["".join(map(call, ["right", "down", "up"]))])
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert trajectory.metrics["moves"] == 2
    assert [text.split("\n")[0] for text in told(trajectory)[1:]] == [
        "  (Right)",
        "  (Down)",
        "Not done: the game was over before this move.",
    ]


def test_taxi_picks_up_and_delivers(play):
    names = ["south", "north", "east", "west", "pickup", "dropoff"]
    taxi = {"id": "Taxi-v4", "options": {"render_mode": "ansi"}, "action_names": names, "show": "both"}
    around_the_wall = ["south", "south", "west", "west", "north", "north", "pickup"]
    moves = [*around_the_wall, *["south"] * 4, "dropoff"]
    trajectory = play(GymnasiumEnv({**ROW, "seed": 3}, **taxi), [{"action": move} for move in moves], max_tokens=32768)
    first = told(trajectory)[0]
    assert first.startswith("Get to G.\n\n42\n+---------+\n|<blue>R</blue>: |[ ]: :G|")
    assert "<magenta>Y</magenta>" in first
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert trajectory.turn_rewards == [-1.0] * 11 + [20.0]
    assert trajectory.reward == 9.0


def test_blackjack_and_cart_pole_show_action_names(play):
    trajectory = play(
        GymnasiumEnv(
            ROW,
            id="Blackjack-v1",
            actions="text",
            observation_names=["your sum", "dealer", "usable ace"],
            action_names=["stick", "hit"],
        ),
        ["stick"],
    )
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert trajectory.reward in (-1.0, 0.0, 1.0)
    assert told(trajectory)[0].split("\n")[2].startswith("your sum: ")

    names = ["position", "velocity", "angle", "angular velocity"]
    cart = GymnasiumEnv(ROW, id="CartPole-v1", observation_names=names)
    trajectory = play(cart, [{"action": 1}] * 30, max_turns=30)
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert trajectory.reward == trajectory.num_turns
    assert [line.split(":")[0] for line in told(trajectory)[0].split("\n")[2:]] == names


def test_rendered_frames_become_images(play):
    env = GymnasiumEnv(ROW, id="FrozenLake-v1", options={"render_mode": "rgb_array"}, **NAMES, max_invalid_actions=1)

    async def look():
        try:
            return await env.reset()
        finally:
            await env.close()

    import asyncio

    observation = asyncio.run(look())
    text, image = observation.messages[-1]["content"]
    assert text == {"type": "text", "text": "Get to G."}
    assert image["image"].size == (256, 256)


def test_group_shares_its_start_and_rows_differ():
    import asyncio

    async def first(row):
        env = GymnasiumEnv(row, id="CartPole-v1")
        try:
            return (await env.reset()).messages[-1]["content"]
        finally:
            await env.close()

    one, two = list(seeds(prompt="Balance.", num_rows=2, first_seed=7))
    assert asyncio.run(first(one)) == asyncio.run(first(one))
    assert asyncio.run(first(one)) != asyncio.run(first(two))
    unnumbered = {key: value for key, value in one.items() if key != "seed"}
    assert asyncio.run(first(unnumbered)) == asyncio.run(first(unnumbered))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": "FrozenLake-v1", "options": {"nothing": 1}}, "FrozenLake-v1"),
        ({"id": "FrozenLaek-v1"}, "Did you mean 'FrozenLake-v1'"),
        ({"id": "agentloop.errors:UserError"}, "must create a gymnasium.Env"),
        ({"id": "FrozenLake-v1", "action_names": ["a", "b"]}, "action_names"),
        ({"id": "FrozenLake-v1", "show": "render"}, "render_mode"),
        ({"id": "FrozenLake-v1", "actions": "both"}, "'tool' or 'text'"),
        ({"id": "FrozenLake-v1", "action_pattern": "("}, "regular expression"),
    ],
)
def test_invalid_options_raise_at_start(options, words):
    with pytest.raises(UserError, match=words):
        GymnasiumEnv(ROW, **options)
