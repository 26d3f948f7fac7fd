"""What observations look like to the model."""

import numpy as np
import pytest
from gymnasium import spaces

from agentloop.envs.gymnasium.observations import content_of, rendered, shown, uncoloured

PIXELS = spaces.Box(0, 255, (16, 12, 3), dtype=np.uint8)


def image():
    return np.arange(16 * 12 * 3, dtype=np.uint8).reshape(16, 12, 3)


@pytest.mark.parametrize(
    ("space", "observation", "names", "text"),
    [
        (spaces.Text(9), "go [on]", (), "go [on]"),
        (spaces.Discrete(3), np.int64(2), (), "2"),
        (spaces.Discrete(3, start=1), 3, ("a", "b", "c"), "c"),
        (spaces.Box(-1, 1, (2,)), np.array([0.12345678, -1], np.float32), (), "[0.123457, -1]"),
        (spaces.Box(-1, 1, (2,)), np.array([0.5, -1], np.float32), ("x", "y"), "x: 0.5\ny: -1"),
        (spaces.Tuple((spaces.Discrete(9), spaces.Discrete(2))), (7, 1), (), "[7, 1]"),
        (spaces.Tuple((spaces.Discrete(9), spaces.Discrete(2))), (7, 1), ("sum", "ace"), "sum: 7\nace: 1"),
        (
            spaces.Dict({"b": spaces.Text(5), "a": spaces.MultiBinary(2)}),
            {"a": [0, 1], "b": "hi"},
            (),
            "a: [0, 1]\nb: hi",
        ),
        (spaces.Dict({"in": spaces.Dict({"x": spaces.Text(9)})}), {"in": {"x": "1\n2"}}, (), "in:\nx:\n1\n2"),
    ],
)
def test_observations_are_formatted_as_text(space, observation, names, text):
    assert content_of(shown(space, observation, names)) == text


def test_pixels_become_exact_images():
    content = content_of(shown(PIXELS, image()))
    assert np.array_equal(np.asarray(content[0]["image"]), image())
    grey = spaces.Box(0, 255, (8, 8, 1), dtype=np.uint8)
    assert content_of(shown(grey, np.zeros((8, 8, 1), np.uint8)))[0]["image"].mode == "L"
    assert content_of(rendered([image(), image() + 1]))[0]["image"].getpixel((0, 0)) == (1, 2, 3)


def test_images_in_nested_observations_are_found():
    space = spaces.Dict({"camera": PIXELS, "speed": spaces.Discrete(3)})
    content = content_of(shown(space, {"camera": image(), "speed": 2}))
    assert [part.get("text", "image") for part in content] == ["camera:", "image", "speed: 2"]


def test_terminal_colours_become_readable_text():
    assert uncoloured("\x1b[41mS\x1b[0mF \x1b[34;1mR\x1b[0m \x1b[2J\x1b[1mx\x1b[0m") == "[S]F <blue>R</blue> x"
