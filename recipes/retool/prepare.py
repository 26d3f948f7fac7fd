"""Download ReTool's public datasets from the Hugging Face hub and write them as JSON lines.

    python -m agentloop.recipes.retool.prepare [FOLDER]

FOLDER (default: data/ beside this file) gets dapo_math_17k.jsonl, aime_2025.jsonl and sft.jsonl, and the same in the
paper's format (paper_dapo_math_17k.jsonl, ...). It needs the package `datasets` and a network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentloop.process.program_errors import errors_end_the_program
from agentloop.recipes.hub_data import data_folder, load_hub_dataset, write_rows
from agentloop.recipes.retool.paper import PROMPT, paper_rows, turns_of
from agentloop.recipes.retool.traces import TraceError, as_messages, question_of

ANSWER_FORMAT = "\nThe answer format must be: \\boxed{'The final answer goes here.'}"
"""Suffix of every question in verl's recipe."""

Row = dict[str, Any]


def dapo_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Convert BytedTsinghua-SIA/DAPO-Math-17k, whose dump on the hub repeats questions, to unique rows."""
    seen: set[str] = set()
    for row in rows:
        question = str(row["prompt"][0]["content"])
        if question not in seen:
            seen.add(question)
            yield _row(f"dapo-{len(seen) - 1}", question, row["reward_model"]["ground_truth"])


def aime_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Convert yentinglin/aime_2025."""
    for index, row in enumerate(rows):
        yield _row(f"aime-2025-{index}", str(row["problem"]), row["answer"])


def sft_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Convert JoeYing/ReTool-SFT to conversations with function calls.

    Traces that are not in the paper's format are skipped, and their number is printed to stderr.
    """
    num_left_out = 0
    for row in rows:
        try:
            yield {"messages": as_messages(row)}
        except TraceError:
            num_left_out += 1
    if num_left_out:
        print(f"Skipped {num_left_out} traces that are not in the paper's format", file=sys.stderr)


def paper_sft_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Convert the same dataset without function calls: a question, and turns that end with a program or the answer."""
    for row in rows:
        try:
            as_messages(row)
        except TraceError:
            continue
        asked = PROMPT.format(question=question_of(row))
        yield {"messages": [{"role": "user", "content": asked}, *turns_of(str(row["messages"][1]["content"]))]}


def _row(identifier: str, question: str, answer: object) -> Row:
    return {
        "id": identifier,
        "prompt": [{"role": "user", "content": question + ANSWER_FORMAT}],
        "answer": str(answer),
    }


def main() -> None:
    """Write the files."""
    folder = data_folder(globals())
    for name, source, convert in (
        ("dapo_math_17k", "BytedTsinghua-SIA/DAPO-Math-17k", dapo_rows),
        ("aime_2025", "yentinglin/aime_2025", aime_rows),
        ("sft", "JoeYing/ReTool-SFT", sft_rows),
    ):
        rows = load_hub_dataset(source, split="train")
        path = folder / f"{name}.jsonl"
        print(f"{path}: {write_rows(path, convert(rows))} rows")
        in_paper = paper_sft_rows(rows) if convert is sft_rows else paper_rows(convert(rows), ANSWER_FORMAT)
        path = folder / f"paper_{name}.jsonl"
        print(f"{path}: {write_rows(path, in_paper)} rows")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
