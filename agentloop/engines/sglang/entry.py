"""Run SGLang's server, and end it when the process PID ends in any way.

    python -P entry.py PID --model-path ... --port ...

-P keeps the folder of this file off sys.path, where its modules would hide others of the same names.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import sys
import threading


def _end_with(owner: int) -> None:
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:
        pass
    else:
        select.select([handle], [], [])
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    # SGLang's workers are spawned: they import this file, under another name.
    threading.Thread(target=_end_with, args=(int(sys.argv.pop(1)),), daemon=True).start()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
