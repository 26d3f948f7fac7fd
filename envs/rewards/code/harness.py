"""Script that runs in the sandbox after the solution, and calls its function or executes statements.

It uses only the standard library. After the solution has run, it reads its job, a JSON object in the last line of
stdin, so a solution that reads all of stdin passes no case. Each finished case adds a line to `done.jsonl`. The
solution may end the process at any time, and then the missing cases count as unfinished.
"""

import json
import sys
from typing import Any


def main() -> None:
    """Run the solution and then the cases of the job."""
    # Not "__main__", so that a program does not run its main part, which may read stdin.
    namespace: dict[str, Any] = {"__name__": "solution", "__file__": "solution.py"}
    with open("solution.py", encoding="utf-8") as file:
        source = file.read()
    exec(compile(source, "solution.py", "exec"), namespace)
    job = json.loads(sys.stdin.readline())
    with open("done.jsonl", "w", encoding="utf-8") as done:
        for number, case in enumerate(job["cases"]):
            try:
                if job["function"]:
                    result = _call(namespace, job["function"], case)
                else:
                    exec(compile(case, "tests.py", "exec"), namespace)
                    result = job["marker"]
                line = json.dumps({"case": number, "result": result})
            except Exception:  # any error of the solution, or a result that JSON cannot express
                if job["stop"]:
                    break
                continue
            done.write(line + "\n")
            done.flush()


def _call(namespace: dict[str, Any], name: str, arguments: list[Any]) -> Any:
    function = namespace[name] if name in namespace else getattr(namespace["Solution"](), name)
    return function(*arguments)


main()
