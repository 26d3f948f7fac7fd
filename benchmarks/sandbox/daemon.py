"""Start a sandbox daemon for a benchmark, and measure its memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(*options: str) -> Iterator[tuple[int, int]]:
    """Run `agentloop tools serve` with these options on a free port; yield its pid and port."""
    command = [sys.executable, "-m", "agentloop.tools", "serve", "--port", "0", "--log-level", "warning", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, _port(process.stdout)
        finally:
            process.terminate()
            process.stdout.read()


def _port(output: Iterator[str]) -> int:
    for line in output:
        if match := re.search(r"https?://[\w.\[\]:]+:(\d+)", line):
            return int(match[1])
    raise RuntimeError("The daemon ended before it served.")


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def pss_mb(pid: int) -> float:
    """Return the proportional set size of a process in MiB, or 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0]) / 1024


def rss_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^VmRSS:\s+(\d+)", text, re.MULTILINE)[0]) / 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
