"""Rows of DeepEyes with the prompt of verl's recipe for function calls: the chat template describes the tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import UserError

SYSTEM = (
    "You are a helpful assistant. You can call functions to assist with the user query. Important: You must call only "
    "one function at a time. After each function call, wait for the execution result before making the next function "
    "call if needed."
)


def rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file of ChenShawn/DeepEyes-Datasets-47k. Raises `UserError`."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError("Parquet files need pyarrow: pip install 'agentloop[parquet]'.") from error
    if not Path(path).is_file():
        raise UserError(f"There is no dataset file {path}. The README of the recipe explains how to get it.")
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=64):
        for row in batch.to_pylist():
            yield with_prompt(row)


def with_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with our system message and its own last user turn. Raises `UserError` if it has none."""
    users = [message["content"] for message in row["prompt"] if message["role"] == "user"]
    if not users:
        raise UserError(f"A row of DeepEyes has no user turn: {str(row['prompt'])[:80]}")
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": users[-1]}]
    return {**row, "prompt": prompt}
