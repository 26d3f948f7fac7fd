"""The text that the model reads after a cell. That of a new process is tested with the real tool."""

import io

import pytest
from PIL import Image

from agentloop.sandboxes import CellError, CellResult
from agentloop.tools import code_feedback


def png(width: int = 4, height: int = 3, mode: str = "RGBA") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "PNG")
    return file.getvalue()


async def feedback(*, stdout="", stderr="", max_images=0, max_output_bytes=1000, **options):
    result = CellResult(stdout=stdout, stderr=stderr, seconds=0.1, **options)
    return await code_feedback.of_cell(
        result, 10.0, max_output_bytes=max_output_bytes, max_traceback_lines=4, max_images=max_images
    )


def error(*lines: str, name: str = "ValueError") -> CellError:
    return CellError(name=name, value="", traceback=lines)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ({}, "[no output]"),
        ({"stdout": "a\nb\n"}, "a\nb"),
        ({"displays": [{"text/plain": "42"}]}, "42"),
        ({"stdout": "a\n", "displays": [{"text/plain": "1"}, {"text/html": "<b>"}, {"text/plain": "2"}]}, "a\n1\n2"),
        ({"stdout": "a\n", "stderr": "warned\n"}, "a\nwarned"),
        ({"stderr": "1\n2\n3\n4\n5\n"}, "...\n2\n3\n4\n5"),
        ({"stdout": "a\n", "error": error("Traceback", "ValueError: no")}, "a\nTraceback\nValueError: no"),
        ({"error": error("1\n2", "3\n", "4", "5", "E: no")}, "...\n3\n4\n5\nE: no"),
        ({"error": error("E: " + "x" * 5000)}, "E: " + "x" * 997 + "..."),
        ({"stdout": "a", "timed_out": True, "error": error("KeyboardInterrupt", name="KeyboardInterrupt")},
         "a\n[timed out after 10 s]"),
        ({"timed_out": True, "error": error("ValueError: late")}, "ValueError: late\n[timed out after 10 s]"),
        ({"error": error("KeyboardInterrupt", name="KeyboardInterrupt")}, "KeyboardInterrupt"),
        ({"error": error("MemoryError", name="MemoryError"), "oom": True}, "MemoryError\n[out of memory]"),
        ({"stdout": "a", "output_truncated": True}, "a\n[output cut]"),
        ({"session_ended": "exited"},
         "[Python exited: variables and files are lost, and the next call starts afresh]"),
        ({"oom": True, "session_ended": "oom"},
         "[out of memory]\n[Python was killed: variables and files are lost, and the next call starts afresh]"),
        ({"timed_out": True, "session_ended": "killed"},
         "[timed out after 10 s]\n[Python was killed: variables and files are lost, and the next call starts afresh]"),
        ({"displays": [{"text/plain": "é" * 600}, {"text/plain": "more"}]}, "é" * 500 + "\n[output cut]"),
        ({"displays": [{"text/plain": "<Figure>", "image/png": b""}]}, "[an image, not shown]"),
    ],
)  # fmt: skip
async def test_text_output_is_formatted(cell, text):
    assert await feedback(**cell) == text


async def test_images_appear_between_the_surrounding_text():
    shown = [{"text/plain": "first"}, {"image/png": png(), "text/plain": "<Figure>"}, {"text/plain": "second"}]
    parts = await feedback(stdout="out\n", displays=shown, max_images=1)
    assert [part["type"] for part in parts] == ["text", "image", "text"]
    assert parts[0]["text"] == "out\nfirst"
    assert parts[2]["text"] == "second"
    assert parts[1]["image"].size == (4, 3)
    assert parts[1]["image"].mode == "RGB"
    assert parts[1]["image"].getpixel((0, 0)) == (255, 255, 255)  # transparency is paper, not black


async def test_image_count_is_limited():
    parts = await feedback(displays=[{"image/png": png()}] * 3, max_images=2)
    assert [part["type"] for part in parts] == ["image", "image", "text"]
    assert parts[2]["text"] == "[an image, not shown]"


@pytest.mark.parametrize(
    ("image", "text"),
    [(b"\x89PNG\r\n\x1a\nbroken", "is a damaged PNG file"), (png(13000, 13000, "1"), "the limit is 16,000,000")],
)
async def test_invalid_images_are_reported(image, text):
    assert text in await feedback(displays=[{"image/png": image}], max_images=1)
