"""Runs inside of the sandbox, behind the solution: calls its function, or runs statements, and says what came out.

A script: standard library only. What it is to do is one JSON object in the last line of stdin, read when the solution
has run: a solution that reads stdin to its end gets nothing done. Each case that is done adds a line to `done.jsonl`.
The process may end anywhere, by whatever the solution does: what is not in that file was not done.
"""

import json
import sys
from typing import Any


def main() -> None:
    # Not "__main__": what a program does for itself only, such as reading stdin, is not asked for here.
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
            except Exception:  # whatever the solution raises, or a result that JSON cannot hold
                if job["stop"]:
                    break
                continue
            done.write(line + "\n")
            done.flush()


def _call(namespace: dict[str, Any], name: str, arguments: list[Any]) -> Any:
    function = namespace[name] if name in namespace else getattr(namespace["Solution"](), name)
    return function(*arguments)


main()
