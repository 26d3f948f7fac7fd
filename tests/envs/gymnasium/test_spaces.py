"""Action spaces: whatever a space holds can be written as its schema says, and reads back as an element of it."""

import json
import math

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentloop.envs.gymnasium.spaces import ActionArguments
from agentloop.envs.gymnasium.text_actions import action_in
from agentloop.errors import UserError
from agentloop.tools.schema import ArgumentError

SPACES = {
    "discrete": spaces.Discrete(4, start=-1),
    "multi_discrete": spaces.MultiDiscrete([3, 2, 5]),
    "multi_discrete_2d": spaces.MultiDiscrete([[3, 2], [2, 9]]),
    "multi_binary": spaces.MultiBinary([2, 3]),
    "box": spaces.Box(-1, 1, (3,)),
    "box_bounds": spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 7.0]), dtype=np.float64),
    "box_unbounded": spaces.Box(-np.inf, np.inf, (2, 2)),
    "box_integers": spaces.Box(0, 9, (2,), dtype=np.int32),
    "scalar": spaces.Box(0, 1, ()),
    "text": spaces.Text(8, min_length=1),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Text(3, min_length=0))),
    "dict": spaces.Dict({"move": spaces.Discrete(3), "by": spaces.Dict({"x": spaces.Box(0, 1, (2,))})}),
}


def plain(value):
    """An element of a space as JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", SPACES)
def test_elements_fit_the_schema_and_round_trip(name):
    space = SPACES[name]
    arguments = ActionArguments(space)
    Draft202012Validator.check_schema(arguments.schema)
    space.seed(1)
    for _ in range(20):
        element = space.sample()
        written = json.loads(json.dumps(plain(element)))
        given_arguments = written if isinstance(space, spaces.Dict) else {"action": written}
        Draft202012Validator(arguments.schema).validate(given_arguments)
        read = arguments.validate(given_arguments)
        action = read if isinstance(space, spaces.Dict) else read["action"]
        assert space.contains(action)
        assert plain(action) == plain(element)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["action", "move", "by", "x"]), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(SPACES)), JSON, st.booleans())
def test_other_values_are_rejected_with_a_reason(name, value, wrap):
    space = SPACES[name]
    value = {"action": value} if wrap or not isinstance(value, dict) else value
    read = refusal = None
    try:
        read = ActionArguments(space).validate(value)
    except ArgumentError as error:
        refusal = str(error)
    if refusal is not None:
        assert refusal.strip()
    else:
        assert space.contains(read if isinstance(space, spaces.Dict) else read["action"])


@pytest.mark.parametrize(
    ("name", "action", "words"),
    [
        ("discrete", 3, "action: must be from -1 to 2, got 3."),
        ("discrete", 1.5, "action: must be an integer, got 1.5."),
        ("discrete", True, "action: must be an integer, got True."),
        ("multi_discrete", [0, 0], "action: must be an array of 3 elements, got [0, 0]."),
        ("multi_discrete_2d", [[0, 0], [0, 9]], "action[1][1]: must be from 0 to 8, got 9."),
        ("box", [0, 0, 1.5], "action[2]: must be from -1 to 1, got 1.5."),
        ("box", [0, 0, math.nan], "action[2]: must be a number, got nan."),
        ("text", "", "action: must have 1 to 8 characters, got 0."),
        ("text", "a b", "action: must not contain ' '"),
        ("tuple", [0], "action: must be an array of 2 elements, got [0]."),
    ],
)
def test_problems_are_described(name, action, words):
    with pytest.raises(ArgumentError) as error:
        ActionArguments(SPACES[name]).validate({"action": action})
    assert str(error.value).startswith(words)


def test_numeric_strings_are_accepted():
    assert ActionArguments(SPACES["multi_discrete"]).validate({"action": ["2", 1.0, " 4 "]})["action"].tolist() == [
        2,
        1,
        4,
    ]


def test_invalid_dict_keys_are_named():
    with pytest.raises(ArgumentError) as error:
        ActionArguments(SPACES["dict"]).validate({"mvoe": 1, "by": {}})
    assert str(error.value) == "mvoe: unknown. Did you mean 'move'?\nmove: missing."
    with pytest.raises(ArgumentError, match=r"by\.x: missing"):
        ActionArguments(SPACES["dict"]).validate({"move": 1, "by": {}})


def test_space_without_json_form_raises():
    with pytest.raises(UserError, match="ActionWrapper"):
        ActionArguments(spaces.Sequence(spaces.Discrete(2)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2] and then [3, 4", [1, 2]),
        ("so [[1, 2], [3, 4], [5", [3, 4]),
        ('{"a": [1, 2], "b": ["[9]", x', [1, 2]),
        ("I see [a wall], so [1, [2]] it is", [1, [2]]),
        ("{'x': [1]}", [1]),
    ],
)
def test_last_complete_json_value_is_the_action(text, expected):
    assert action_in(text, spaces.Box(0, 9, (2,)), (), None) == expected


@pytest.mark.parametrize("text", ["[" * 50_000, "{" * 50_000, "[" + "1" * 5000 + "]", '["' * 20_000])
def test_hostile_json_is_no_action(text):
    with pytest.raises(ArgumentError):
        action_in(text, spaces.Box(0, 9, (2,)), (), None)
