"""Download SkyRL-SQL's tasks from the Hugging Face hub and write them as JSON lines.

    python -m agentloop.recipes.text_to_sql.prepare [FOLDER]

FOLDER (default: data/ beside this file) gets train.jsonl and validation.jsonl. It needs the package `datasets` and a
network. README.md explains how to get the databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentloop.errors import UserError
from agentloop.process.program_errors import errors_end_the_program
from agentloop.recipes.hub_data import data_folder, load_hub_dataset, write_rows

SOURCE = "NovaSky-AI/SkyRL-SQL-653-data-newfmt"

FOLDERS = {
    "synsql": "SynSQL-2.5M/databases",
    "spider": "spider/database",
    "bird": "bird/train/train_databases",
}
"""Folders of each collection in OmniSQL's archive."""

SYSTEM = (
    "You are a data science expert. You get a database schema and a question, and answer it with one SQLite query. "
    "Think inside <think> and </think> at the start of every turn. Try queries with the tool sql_query: look at "
    "values, check parts of your query, and read the errors. You have {turns} turns. When you are sure, write the "
    "query that answers the question, and nothing else, inside <solution> and </solution>. It must return the columns "
    "that are asked for and no others."
)
"""Our instructions for function calls: those of the dataset request <sql> tags."""

_TURNS = 6


def task_rows(rows: Iterable[Mapping[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Convert rows of SkyRL-SQL to use our system message. Raises `UserError` for rows of another form."""
    for index, row in enumerate(rows):
        users = [message["content"] for message in row["prompt"] if message["role"] == "user"]
        if row["data"] not in FOLDERS or not users or "<sql>" in users[-1]:
            raise UserError(
                f"Row {index} of {SOURCE} has an unknown form. It needs the schema and the question in the user "
                f"message, the format in the system message, and data set to one of {', '.join(FOLDERS)}."
            )
        yield {
            "id": f"{name}-{index}",
            "prompt": [
                {"role": "system", "content": SYSTEM.format(turns=_TURNS)},
                {"role": "user", "content": users[-1]},
            ],
            "database": f"{FOLDERS[row['data']]}/{row['db_id']}/{row['db_id']}.sqlite",
            "answer": row["reward_spec"]["ground_truth"],
        }


def main() -> None:
    """Write the files."""
    folder = data_folder(globals())
    for split in ("train", "validation"):
        path = folder / f"{split}.jsonl"
        print(f"{path}: {write_rows(path, task_rows(load_hub_dataset(SOURCE, split=split), split))} rows")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
