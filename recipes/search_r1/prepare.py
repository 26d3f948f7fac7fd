"""Download Search-R1's questions from the Hugging Face hub and write them as JSON lines.

    python -m agentloop.recipes.search_r1.prepare [FOLDER]

FOLDER (default: data/ beside this file) gets train.jsonl (Natural Questions and HotpotQA) and test.jsonl (Natural
Questions). It needs the package `datasets` and a network. README.md explains how to get the corpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentloop.process.program_errors import errors_end_the_program
from agentloop.recipes.hub_data import data_folder, load_hub_dataset, write_rows

SOURCE = "RUC-NLPIR/FlashRAG_datasets"

PROMPT = (
    "Answer the given question. Think inside <think> and </think> every time you get new information. If you lack some "
    "knowledge, call the tool search, as often as you need. When you know the answer, give it inside <answer> and "
    "</answer>, without explanations, for example <answer> Beijing </answer>. Question: {question}"
)
"""Our version of Search-R1's prompt, for function calls."""


def question_rows(rows: Iterable[Mapping[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Convert rows of FlashRAG (`question`, `golden_answers`). Questions end with one question mark, as there."""
    for index, row in enumerate(rows):
        question = str(row["question"]).strip().rstrip("?") + "?"
        yield {
            "id": f"{name}-{index}",
            "prompt": [{"role": "user", "content": PROMPT.format(question=question)}],
            "answer": {"target": [str(answer) for answer in row["golden_answers"]]},
        }


def main() -> None:
    """Write the files."""
    folder = data_folder(globals())
    for file, names, split in (("train", ("nq", "hotpotqa"), "train"), ("test", ("nq",), "test")):
        rows = (row for name in names for row in question_rows(load_hub_dataset(SOURCE, name, split=split), name))
        path = folder / f"{file}.jsonl"
        print(f"{path}: {write_rows(path, rows)} rows")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
