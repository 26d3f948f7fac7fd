"""Load datasets: files (JSON, CSV, Parquet), folders of files or of the library `datasets`, and Python functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from agentloop.envs.datasets.conversations import read_conversation, read_pair
from agentloop.envs.datasets.files import SUFFIXES, file_rows, folder_rows
from agentloop.envs.datasets.rows import read_row
from agentloop.errors import UserError, blaming, see_readme
from agentloop.registry.named_objects import load_object
from agentloop.registry.options import as_annotated

_END = object()
"""Marks the end of the rows of a function."""


def load_dataset(
    source: str | Sequence[str],
    *,
    options: Mapping[str, Any] | None = None,
    limit: int | None = None,
    needs_prompt: bool = True,
) -> list[dict[str, Any]]:
    """Load the rows of a dataset, each in the form of `read_row`.

    `source` is one or several of: a file (.jsonl, .jsonl.gz, .ndjson, .json, .csv, .parquet), a folder of such files
    except .json, a folder written by `save_to_disk` of `datasets`, or a function ('package.module:function' or
    'file.py:function'), which is called with `options` and returns an iterable of rows. `limit` keeps only the first
    rows. Image paths start at the folder. Without `needs_prompt` a row may lack a prompt.

    Raises `UserError` for a missing file, a malformed row (with its location), or no rows at all.
    """
    columns = "'messages' or a 'prompt' column" if needs_prompt else ""
    return _load(source, options, limit, partial(read_row, needs_prompt=needs_prompt), columns)


def load_conversations(
    source: str | Sequence[str], *, options: Mapping[str, Any] | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """Load finished conversations, each in the form of `read_conversation`; otherwise as `load_dataset`."""
    return _load(source, options, limit, read_conversation, "'messages' or a 'conversations' column")


def load_pairs(
    source: str | Sequence[str], *, options: Mapping[str, Any] | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """Load preference pairs, each in the form of `read_pair`; otherwise as `load_dataset`."""
    return _load(source, options, limit, read_pair, "'chosen' and a 'rejected' column")


def _load(
    source: str | Sequence[str],
    options: Mapping[str, Any] | None,
    limit: int | None,
    read: Callable[[object, str, int, Path], dict[str, Any]],
    columns: str,
) -> list[dict[str, Any]]:
    sources = [source] if isinstance(source, str) else source
    opened = [_open(each, options or {}) for each in sources]
    if options and not any(_is_function(each) for each in sources):
        raise UserError(
            f"The options {dict(options)} are for a dataset function, but {source} is not one. Remove "
            "them from data.train_options, data.eval_options, or the options and levels of a source. To keep only the "
            "first rows, set data.train_limit, data.eval_limit, or the limit of a source."
        )
    raw_rows = ((folder, where, raw) for folder, rows in opened for where, raw in rows)
    rows = [read(raw, where, index, folder) for index, (folder, where, raw) in enumerate(islice(raw_rows, limit))]
    if not rows:
        needed = f" Each row needs at least a {columns}." if columns else ""
        raise UserError(f"The dataset {source} has no rows.{needed}")
    return rows


def _open(source: str, options: Mapping[str, Any]) -> tuple[Path, Iterator[tuple[str, object]]]:
    """Return the folder of the images, and (where, raw row) of each row."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path, folder_rows(path)
    if source.endswith(SUFFIXES):
        if not path.is_file():
            raise UserError(
                f"There is no dataset file {path}. Relative paths start at the folder of the config file, or at the "
                f"current folder on the command line.{see_readme(path)}"
            )
        return path.parent, file_rows(path)
    if _is_function(source):
        return Path(), _python_rows(source, options)
    raise UserError(
        f"The type of the dataset {source!r} is unknown. Use a file ({', '.join(SUFFIXES)}), a folder of such files or "
        "of the library datasets, or a function that returns rows ('package.module:function' or 'file.py:function'). "
        "For a dataset of the hub, write a function that calls datasets.load_dataset."
    )


def _is_function(source: str) -> bool:
    return ":" in source and not source.endswith(SUFFIXES) and not Path(source).expanduser().is_dir()


def _python_rows(source: str, options: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    function = load_object(source, "dataset")
    if not callable(function):
        raise UserError(f"The dataset {source!r} must be a function that returns rows, got {type(function).__name__}.")
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise UserError(
            f"The dataset function {source!r} does not accept the options {dict(options)}: {error}."
        ) from error
    options = as_annotated(function, options, of=f"dataset function {source!r}")
    failed = f"The dataset function {source!r} failed"
    with blaming(failed):
        rows = function(**options)
    if not isinstance(rows, Iterable):
        raise UserError(f"The dataset function {source!r} must return an iterable of rows, got {type(rows).__name__}.")
    iterator, number = iter(rows), 0
    while True:
        with blaming(f"{failed} after row {number}"):
            row = next(iterator, _END)
        if row is _END:
            return
        number += 1
        yield f"{source}, row {number}", row
