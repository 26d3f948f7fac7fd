"""Write the data of the side-by-side runs: a short cold start for both kinds of tasks, and sums for a single turn.

    python -m benchmarks.side_by_side.data DATA FOLDER [--conversations 160] [--sums 320]

DATA is the folder of `agentloop.recipes.smollm2.prepare`. FOLDER gets

- sft.jsonl: conversations of DATA with calls of the code interpreter, and sums that are answered directly.
- tools/train.jsonl and tools/held_out.jsonl: the tasks of DATA.
- sums/train.jsonl and sums/held_out.jsonl: sums of two numbers, without a tool. No sum is in two files.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SYSTEM = "Write the final answer as <answer>...</answer>."
HELD_OUT = 215


def sums(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Return different questions for the sum of two numbers of two digits, and their answers."""
    pairs = list(itertools.product(range(10, 100), repeat=2))
    return [(f"What is {a} + {b}?", str(a + b)) for a, b in random.Random(seed).sample(pairs, count)]


def _prompt(question: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conversations", type=int, default=160)
    parser.add_argument("--sums", type=int, default=320)
    args = parser.parse_args()
    found = sums(8000)
    shown, held_out, train = found[: args.sums], found[args.sums :][:HELD_OUT], found[args.sums + HELD_OUT :]
    for name, part in (("train", train), ("held_out", held_out)):
        rows = ({"id": f"{name}-{i}", "prompt": _prompt(q), "answer": a} for i, (q, a) in enumerate(part))
        _write(args.folder / "sums" / f"{name}.jsonl", rows)
        (args.folder / "tools").mkdir(exist_ok=True)
        shutil.copy(args.data / f"{name}.jsonl", args.folder / "tools")
    direct = [
        {"messages": [*_prompt(q), {"role": "assistant", "content": f"<answer>{a}</answer>"}], "tools": []}
        for q, a in shown
    ]
    lines = (args.data / "sft.jsonl").read_text().splitlines()[: args.conversations]
    conversations = [*map(json.loads, lines), *direct]
    random.Random(0).shuffle(conversations)
    _write(args.folder / "sft.jsonl", conversations)


if __name__ == "__main__":
    main()
