"""Modifiers change what they are named for, leave valid Python and all text around it; patches lead back."""

import ast
import json.decoder
import random
import shutil
import subprocess
import tempfile
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.envs.harbor.making.swe.modifiers.registry import MODIFIERS
from agentloop.envs.harbor.making.swe.modifiers.source import Edit, Source
from agentloop.envs.harbor.making.swe.patch import patch_between

EXAMPLES = {
    "change_comparison": ("x = a <= b  # a < b\n", ["x = a < b  # a < b\n"]),
    "reverse_comparison": ("x = (a) <= (b)\n", ["x = (a) >= (b)\n"]),
    "change_operator": ("x = a + b\nx //= 2\ny = '%s' % a\n", ["x = a - b\nx //= 2\ny = '%s' % a\n"]),
    "change_and_or": ("x = a and (b or c)\n", ["x = a or (b or c)\n", "x = a and (b and c)\n"]),
    "swap_operands": ("x = a - f(b)\ny = c + d\n", ["x = f(b) - a\ny = c + d\n"]),
    "swap_arguments": ("f(a,  b, c)\ng(*a, b)\n", ["f(b,  a, c)\ng(*a, b)\n"]),
    "change_number": ("x = 0x10 + 0 + True\n", ["x = 0x10 + 1 + True\n"]),
    "change_truth": ("x = f(True)\n", ["x = f(False)\n"]),
    "remove_sign": ("x = -a\ny = not b\n", ["x = a\ny = not b\n", "x = -a\ny = b\n"]),
    "use_other_parameter": (
        "def f(self, a, b):\n    return self.a - a\n",
        ["def f(self, a, b):\n    return self.a - b\n"],
    ),
    "invert_condition": ("if not a:\n    b\n", ["if a:\n    b\n"]),
    "remove_conditional": ("if a:\n    b\nelse:\n    if c:\n        d\n", ["if a:\n    b\nelse:\n    pass\n"]),
    "swap_branches": ("if a:\n    b\nelse:\n    c\n    d\n", ["if a:\n    c\n    d\nelse:\n    b\n"]),
    "remove_loop": ("a\nfor b in c:  # all\n    d\ne\n", ["a\ne\n"]),
    "remove_assignment": ("a = 1\ndef f():\n    a = 2\n    return a\n", ["a = 1\ndef f():\n    return a\n"]),
    "remove_call": ("a = f()\nf(a)  # b\nc\n", ["a = f()\nc\n"]),
    "change_return": ("def f(a):\n    return (a, 1)\n", ["def f(a):\n    return None\n"]),
    "change_jump": ("for a in b:\n    break\n", ["for a in b:\n    continue\n"]),
    "swap_statements": ("'text'\na = 1\n# one\nb = 2; c = 3\nd = 4\n", []),
    "change_default": ("def f(a, b=True, *, c=None): pass\n", ["def f(a, b=False, *, c=None): pass\n"]),
    "remove_base": ("class A(B, C, metaclass=D): pass\n", ["class A(C, metaclass=D): pass\n"]),
    "remove_decorator": (
        "class A:\n    @property\n    @b\n    def c(): pass\n",
        ["class A:\n    @b\n    def c(): pass\n"],
    ),
}
"""A file, and some of the files that the modifier makes of it."""

LARGE = [Path(module.__file__) for module in (json.decoder, textwrap, random, shutil)]


def results(name: str, text: str) -> list[str]:
    source = Source.parse(text.encode())
    changed = [source.changed(edit) for edit in MODIFIERS[name](source)]
    return [data.decode() for data in changed if data is not None]


def test_every_modifier_has_an_example():
    assert set(EXAMPLES) == set(MODIFIERS)
    assert len(MODIFIERS) >= 20


@pytest.mark.parametrize("name", MODIFIERS)
def test_a_modifier_makes_what_its_example_says(name):
    text, wanted = EXAMPLES[name]
    found = results(name, text)
    assert set(wanted) <= set(found)
    assert bool(found) == bool(wanted)
    for other in found:
        assert ast.dump(ast.parse(other)) != ast.dump(ast.parse(text))


def test_statements_are_swapped_with_what_stands_between_them():
    assert results("swap_statements", "a = 1  # one\n\nb = 2\n") == ["b = 2  # one\n\na = 1\n"]


def test_an_elif_is_removed_with_its_lines():
    text = "if a:\n    b\nelif c:\n    d\ne\n"
    assert "if a:\n    b\ne\n" in results("remove_conditional", text)


@pytest.mark.parametrize("name", MODIFIERS)
def test_types_and_the_inside_of_f_strings_stay(name):
    text = "if TYPE_CHECKING:\n    x(1, 2)\na: 'int' | None\ndef f() -> b < 1: ...\nf'{a + 1 < 2}'\n"
    assert results(name, text) == []


@pytest.mark.parametrize("name", MODIFIERS)
def test_positions_count_bytes_and_all_ends_of_lines(name):
    text, wanted = EXAMPLES[name]
    before = "größe = 'ü'; µ = [\n'a', 'ä']\n".replace("\n", "\r\n")
    found = results(name, before + text.replace("\n", "\r\n"))
    assert {before + each.replace("\n", "\r\n") for each in wanted} <= set(found)


def test_files_that_are_no_python_in_utf_8_are_none():
    for data in (b"x = (", b"# coding: latin-1\nx = '\xe4'\n", b"\xef\xbb\xbfx = 1\n", b"x = '\xe4'\n", b"x\0"):
        assert Source.parse(data) is None


def test_an_edit_that_is_no_python_or_means_the_same_is_none():
    source = Source.parse(b"x = 1\n")
    assert source.changed(Edit(0, 1, b"x  ")) is None
    assert source.changed(Edit(0, 1, b"1")) is None
    assert source.changed(Edit(0, 5, b"break")) is None
    assert source.changed(Edit(4, 5, b"2")) == b"x = 2\n"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_patches_of_edits_lead_back_to_the_same_bytes(data):
    path = data.draw(st.sampled_from(LARGE))
    before = path.read_bytes().replace(b"\n", data.draw(st.sampled_from([b"\n", b"\r\n"])))
    source = Source.parse(before)
    edits = list(MODIFIERS[data.draw(st.sampled_from(sorted(MODIFIERS)))](source))
    if edits:
        edit = data.draw(st.sampled_from(edits))
        after = source.changed(edit)
        if after is not None:
            assert after.startswith(before[: edit.start])
            assert after.endswith(before[edit.stop :])
            assert patched(after, patch_between(after, before, "a/b.py")) == before


def patched(data: bytes, patch: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a/b.py")
        file.parent.mkdir()
        file.write_bytes(data)
        done = subprocess.run(["busybox", "patch", "-p1"], input=patch, cwd=folder, capture_output=True)
        assert done.returncode == 0, done
        return file.read_bytes()
