"""The screen of a terminal draws the output of any program."""

import random

import pytest

from agentloop.tools.machine.screen import Screen


@pytest.mark.parametrize(
    "sequence",
    [b"\x1b[?4m", b"\x1b[?5n", b"\x1b[?1;2c", b"\x1b[3;4B", b"\x1b[746K"],
    ids=["vim", "status", "attributes", "arguments", "erase"],
)
def test_unsupported_sequences_change_nothing(sequence):
    screen = Screen(4, 20)
    screen.feed(b"before" + sequence + b" after")
    assert screen.text().replace("\n", "") == "before after"


def test_wide_characters_can_be_cut():
    screen = Screen(4, 20)
    screen.feed("漢漢\x1b[3D\x1b[1Px".encode())
    assert "x" in screen.text()


def test_random_bytes_are_drawn():
    generator, screen = random.Random(0), Screen(10, 20)
    for _ in range(300):
        screen.feed(b"\x1b[" + generator.randbytes(50) + "²漢".encode())
        screen.text()
