"""Look at processes of learner ranks."""

import os
import time
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist

from agentloop.trainer.cluster.rank_actor import Objects


def write_pid(objects: Objects, file: Path) -> None:
    """Write the id of the process of rank 1; a function for `LearnerRanks.run`."""
    if dist.get_rank() == 1:
        file.write_text(str(os.getpid()))


def descendants(pid: int, name: str) -> set[int]:
    """Return the ids of all processes under `pid` whose command begins with `name`."""
    parents: dict[int, int] = {}
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
                if (folder / "cmdline").read_text().startswith(name):
                    found.add(int(folder.name))

    def is_under(child: int) -> bool:
        return child == pid or (child in parents and is_under(parents[child]))

    return {each for each in found if is_under(each)}


def is_running(pid: int) -> bool:
    """Return whether a process is there, and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int, seconds: float = 60.0) -> None:
    """Raise `AssertionError` if the process outlives the time."""
    ends = time.monotonic() + seconds
    while is_running(pid):
        assert time.monotonic() < ends, f"process {pid} still runs after {seconds:g} s"
        time.sleep(0.05)
