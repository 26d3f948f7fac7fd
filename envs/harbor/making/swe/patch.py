"""Write the difference of two files as a patch that `patch -p1` takes."""

from __future__ import annotations

import difflib


def patch_between(before: bytes, after: bytes, path: str) -> bytes:
    """Return the patch that makes `before` into `after`; `path` is the file's path below the patched directory.

    Both must end with a newline: busybox cannot patch the end of other files.
    """
    assert before.endswith(b"\n")
    assert after.endswith(b"\n")
    names = f"a/{path}".encode(), f"b/{path}".encode()
    return b"".join(difflib.diff_bytes(difflib.unified_diff, _lines(before), _lines(after), *names, lineterm=b"\n"))


def _lines(data: bytes) -> list[bytes]:
    """Return lines that end with a newline only: carriage returns are part of them."""
    return [line + b"\n" for line in data.split(b"\n")][:-1]
