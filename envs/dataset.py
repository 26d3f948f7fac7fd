"""Datasets of tasks: JSONL and Parquet files, or a Python function that gives rows."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentloop.envs.rows import read_row
from agentloop.errors import UserError
from agentloop.loading import load_object

_JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson")
_PARQUET_SUFFIXES = (".parquet",)


def load_dataset(
    source: str, *, options: Mapping[str, Any] | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """The rows of a dataset, each as `read_row` gives it.

    `source` is a path (.jsonl, .jsonl.gz, .ndjson, .parquet) or the spec of a function, 'package.module:function' or
    'file.py:function', which is called with `options` and returns an iterable of rows. `limit` keeps the first rows.

    Raises `UserError` for a missing file, a malformed row (with its line), or no rows at all.
    """
    raw_rows = itertools.islice(_raw_rows(source, options or {}), limit)
    rows = [read_row(raw, where, index) for index, (where, raw) in enumerate(raw_rows)]
    if not rows:
        raise UserError(f"The dataset {source} has no rows. Each row needs at least a 'messages' or a 'prompt' column.")
    return rows


def _raw_rows(source: str, options: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """(where, raw row) of each row."""
    if source.endswith(_JSONL_SUFFIXES):
        return _jsonl_rows(_existing(source))
    if source.endswith(_PARQUET_SUFFIXES):
        return _parquet_rows(_existing(source))
    if ":" in source:
        return _python_rows(source, options)
    known = ", ".join((*_JSONL_SUFFIXES, *_PARQUET_SUFFIXES))
    raise UserError(
        f"The dataset {source!r} is of no known kind. Give a file ({known}) or a function that returns rows, as "
        "'package.module:function' or 'file.py:function'."
    )


def _existing(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.is_file():
        raise UserError(
            f"There is no dataset file {path}. Relative paths in a config file start at the folder of that file, those "
            "on the command line at the current folder."
        )
    return path


def _jsonl_rows(path: Path) -> Iterator[tuple[str, object]]:
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{where} is not JSON: {error.msg} at column {error.colno}. Each line must be one JSON object."
                ) from error
            yield where, row


def _parquet_rows(path: Path) -> Iterator[tuple[str, object]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError(
            f"Reading {path} needs pyarrow, which is not installed: pip install 'agentloop[parquet]', or save the "
            "dataset as JSONL."
        ) from error
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=1024):
        for row in batch.to_pylist():
            number += 1
            yield f"{path}, row {number}", row


def _python_rows(source: str, options: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    function = load_object(source, "dataset")
    if not callable(function):
        raise UserError(f"The dataset {source!r} must be a function that returns rows, got {type(function).__name__}.")
    try:
        rows = function(**options)
    except TypeError as error:
        raise UserError(
            f"The dataset function {source!r} does not take the options {dict(options)}: {error}."
        ) from error
    if not isinstance(rows, Iterable):
        raise UserError(f"The dataset function {source!r} must return an iterable of rows, got {type(rows).__name__}.")
    for number, row in enumerate(rows, 1):
        yield f"{source}, row {number}", row
