"""Measure `import agentloop` in a fresh interpreter, without the start of the interpreter itself.

python benchmarks/import_time.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks import results_file


def seconds(statement: str, repeats: int = 11) -> float:
    """Return the median wall time of a fresh interpreter that runs `statement`."""
    runs = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        runs.append(time.perf_counter() - started)
    return statistics.median(runs)


def main() -> None:
    everything = "import agentloop; [getattr(agentloop, name) for name in agentloop.__all__]"
    bare, light, full = seconds("pass"), seconds("import agentloop"), seconds(everything)
    result = {
        "import_agentloop_seconds": round(light - bare, 4),
        "import_and_use_every_public_name_seconds": round(full - bare, 4),
        "bare_interpreter_seconds": round(bare, 4),
    }
    print(result)
    results_file.write("import_time", result)
    if light - bare > 0.3:
        sys.exit("above the target of 0.3 s")


if __name__ == "__main__":
    main()
