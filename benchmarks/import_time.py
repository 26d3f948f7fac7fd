"""Measure the processor time of `import agentloop` in a fresh interpreter, without the start of the interpreter itself.

    python -m benchmarks.import_time

It fails if the import takes more than 0.3 s.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

from benchmarks import results_file


def seconds(statement: str, repeats: int = 11) -> float:
    """Return the median processor time of a fresh interpreter that runs `statement`."""
    runs = []
    for _ in range(repeats):
        before = _of_children()
        subprocess.run([sys.executable, "-c", statement], check=True)
        runs.append(_of_children() - before)
    return statistics.median(runs)


def _of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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
