from pathlib import Path

import pytest

AREA = '''"""Areas of shapes."""


def rectangle(width, height):
    # Both sides count.
    return width * height


def square(side):  return rectangle(side, side)  # noqa


def largest(areas):
    best = None
    for area in areas:
        if best is None or area > best:
            best = area
    return best


def difference(large, small, absolute=True):
    if absolute and large < small:
        large, small = small, large
    return large - small
'''
NAMES = """class Shape:
    corners = 0

    def describe(self):
        return f"{self.name()} with {self.corners} corners"

    def name(self):
        return type(self).__name__.lower()


class Square(Shape):
    corners = 4
"""
TESTS = """import os
import socket
import unittest

from shapes import area


class Areas(unittest.TestCase):
    def test_rectangle(self):
        self.assertEqual(area.rectangle(3, 4), 12)

    def test_square(self):
        self.assertEqual(area.square(5), 25)

    def test_largest(self):
        self.assertEqual(area.largest([3, 1, 7, 2]), 7)

    def test_difference(self):
        self.assertEqual(area.difference(2, 9), 7)
        self.assertEqual(area.difference(2, 9, absolute=False), -7)

    def test_of_the_network(self):
        socket.create_connection(("192.0.2.1", 80), 5).close()

    def test_of_the_clock(self):
        self.assertEqual(os.environ["PYTHONHASHSEED"], "0")  # not the same each time
"""
NAME_TESTS = """import unittest

from shapes import names


class Names(unittest.TestCase):
    def test_name(self):
        self.assertEqual(names.Square().name(), "square")

    def test_description(self):
        self.assertEqual(names.Square().describe(), "square with 4 corners")

    def test_corners(self):
        self.assertEqual(names.Shape().corners, 0)
"""
FILES = {
    "pyproject.toml": '[project]\nname = "shapes"\nversion = "1.2"\n',
    "src/shapes/__init__.py": "",
    "src/shapes/area.py": AREA,
    "src/shapes/names.py": NAMES,
    "tests/__init__.py": "",
    "tests/test_area.py": TESTS,
    "tests/test_names.py": NAME_TESTS,
    "setup.sh": "exit 1\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    "build/lib/shapes/area.py": AREA,
    "src/shapes/__pycache__/area.cpython-311.pyc": "x",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def shapes(tmp_path) -> Path:
    """Return the source folder of a small package whose tests use unittest: two of them cannot pass in a box."""
    return write(tmp_path / "shapes", FILES)
