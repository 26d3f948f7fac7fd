"""Script that compares answers with math-verify in a process that can be killed. It does not use agentloop.

It answers each line {"gold": ..., "text": ...} on stdin with {"readable": ..., "equal": ...} on stdout.
"""

from __future__ import annotations

import json
import logging
import resource
import sys

from math_verify import parse, verify

_DATA_BYTES = 1 << 30


def compare(gold: str, text: str) -> dict[str, bool]:
    """Return whether `gold` is readable, and whether `text` equals it."""
    # No time limits here: alarms do not interrupt C code, so the parent process kills this one.
    wanted = parse(gold if "\\boxed" in gold else rf"\boxed{{{gold}}}", parsing_timeout=None)
    if not wanted:
        return {"readable": False, "equal": False}
    try:
        found = parse(text, parsing_timeout=None)
        return {"readable": True, "equal": bool(found) and verify(wanted, found, timeout_seconds=None)}
    except MemoryError:
        return {"readable": True, "equal": False}


def main() -> None:
    """Answer requests until stdin ends."""
    logging.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
    sys.set_int_max_str_digits(10_000)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(compare(request["gold"], request["text"])), flush=True)


if __name__ == "__main__":
    main()
