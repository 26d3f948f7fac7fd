"""Run as a script: SGLang's server, which ends when the process that is named first does, however that ends.

python sglang_entry.py PID --model-path ... --port ...
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
    sys.path.pop(0)  # the folder of this file, where sglang.py is another module
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
