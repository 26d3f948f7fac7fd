"""Check that memory and descriptors of the daemon do not grow over very many executions of all kinds.

python -m benchmarks.sandbox.sandbox_soak [--executions 50000]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import results_file
from benchmarks.sandbox import daemon
from benchmarks.sandbox.http_load import drive, request, sessions

CLIENTS = 8
SAMPLES = 50
WARM_UP = 0.2
"""Share of the first samples to ignore, while caches and arenas fill."""
MAX_GROWTH = {"daemon_mb": 4.0, "family_mb": 12.0, "descriptors": 8.0, "processes": 2.0}
"""Allowed rise of the fitted line over the rest of the run: a leak of 100 bytes per execution is 4 MiB in 40,000."""

_BIG = "import sys; print('x' * 300_000); print('y' * 2_000_000, file=sys.stderr)"
_KINDS: list[tuple[int, dict[str, Any]]] = [
    (60, {"code": "print(1)"}),
    (10, {"code": "import numpy as np; print(np.random.rand())"}),
    (8, {"code": "raise ValueError('x')"}),
    (6, {"code": "print(input())", "stdin": "line\n" * 1000}),
    (5, {"code": "open('out', 'w').write('x' * 10_000)", "files": {"in": "eA=="}, "fetch_files": ["out", "in"]}),
    (4, {"code": "echo $((1 + 1)); exit 3", "language": "bash"}),
    (3, {"code": _BIG}),
    (2, {"code": "import os; os.kill(os.getpid(), 9)"}),
    (1, {"code": "while True: pass", "run_timeout": 0.1}),
    (1, {"code": "import os, time\nfor _ in range(20): os.fork()\ntime.sleep(9)", "run_timeout": 0.2}),
]


def mixture(count: int) -> Iterator[bytes]:
    """Return messages of all kinds, each as often as its weight, in a fixed order."""
    hundred = [request("/run_code", {"run_timeout": 10.0, **body}) for weight, body in _KINDS for _ in range(weight)]
    assert len(hundred) == 100
    spread = [hundred[index * 37 % 100] for index in range(100)]
    return itertools.islice(itertools.cycle(spread), count)


def sample(pid: int) -> dict[str, float]:
    members = daemon.family(pid)
    return {
        "daemon_mb": round(daemon.rss_mb(pid), 2),
        "family_mb": round(sum(map(daemon.pss_mb, members)), 2),
        "descriptors": daemon.descriptors(pid),
        "processes": len(members),
    }


def growth(values: list[float]) -> float:
    """Return the rise of the least-squares line from the first value to the last."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    products = sum((index - middle) * (value - mean) for index, value in enumerate(values))
    return products / sum((index - middle) ** 2 for index in range(len(values))) * (len(values) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=50_000)
    count = parser.parse_args().executions
    samples = []
    with daemon.serving("--preload", "numpy", "--slots", "8") as (pid, port):
        start = time.perf_counter()
        for index in range(SAMPLES):
            drive(port, CLIENTS, mixture(count // SAMPLES), b'"status"')
            sessions(port, 2, ["x = 1", "x + 1"])
            samples.append(sample(pid))
            print(f"{(index + 1) * (count // SAMPLES):>7}  {samples[-1]}", flush=True)
        seconds = time.perf_counter() - start
    judged = samples[int(WARM_UP * SAMPLES) :]
    grown = {name: round(growth([found[name] for found in judged]), 3) for name in MAX_GROWTH}
    executions = count // SAMPLES * SAMPLES
    result = {"executions": executions, "seconds": round(seconds, 1), "growth": grown, "samples": samples}
    print(f"growth after the warm-up: {grown}")
    if executions >= 50_000:
        print(results_file.write("sandbox_soak", result))
    leaks = [f"{name} grew by {value}" for name, value in grown.items() if value > MAX_GROWTH[name]]
    if leaks:
        sys.exit("; ".join(leaks))


if __name__ == "__main__":
    main()
