"""Read raw rows from files: JSON, JSON lines, CSV, Parquet, and folders."""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentloop.errors import UserError

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson")
_FOLDER_SUFFIXES = (*JSONL_SUFFIXES, ".csv", ".parquet")
SUFFIXES = (*_FOLDER_SUFFIXES, ".json")
"""Suffixes of files that are read from folders. In a folder, .json files may describe the dataset."""

RawRows = Iterator[tuple[str, object]]
"""Pairs (where, row). `where` is the place of the row for error messages, such as "data.jsonl, line 7"."""


def file_rows(path: Path) -> RawRows:
    """Read a file with one of `SUFFIXES`. Raises `UserError` if it is not readable."""
    readers = {".json": _json_rows, ".csv": _csv_rows, ".parquet": _parquet_rows}
    read = _jsonl_rows if path.name.endswith(JSONL_SUFFIXES) else readers[path.suffix]
    try:
        yield from read(path)
    except UnicodeDecodeError as error:
        raise UserError(
            f"The dataset file {path} cannot be read: it is not UTF-8 text ({error.reason}). Save it as UTF-8."
        ) from error


def folder_rows(folder: Path) -> RawRows:
    """Read a folder written by `save_to_disk` of `datasets`, or its JSONL, CSV and Parquet files, by name.

    Hidden files, whose names begin with a dot, are skipped.
    Raises `UserError` for other folders, and for one with several splits.
    """
    if (splits := folder / "dataset_dict.json").is_file():
        names = ", ".join(_read_json(splits).get("splits", ()))
        raise UserError(f"{folder} has several splits ({names}): use the folder of one, such as {folder}/train.")
    if (state := folder / "state.json").is_file():
        return _arrow_rows([folder / each["filename"] for each in _read_json(state).get("_data_files", ())])
    # macOS writes `._rows.jsonl` beside `rows.jsonl`, and editors write hidden copies.
    shown = (path for path in folder.iterdir() if not path.name.startswith("."))
    files = sorted(path for path in shown if path.name.endswith(_FOLDER_SUFFIXES))
    if not files:
        raise UserError(
            f"The folder {folder} has no dataset: neither a file ({', '.join(_FOLDER_SUFFIXES)}) nor the state.json of "
            "datasets' save_to_disk."
        )
    return (row for path in files for row in file_rows(path))


def _jsonl_rows(path: Path) -> RawRows:
    open_text = gzip.open if path.suffix == ".gz" else open
    try:
        with open_text(path, "rt", encoding="utf-8-sig") as lines:  # some editors begin files with a byte order mark
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}, line {number}", _json_line(line, f"{path}, line {number}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"The dataset file {path} cannot be read: {error}. Check that it is complete.") from error


def _json_line(line: str, where: str) -> object:
    try:
        row = _JSON.decode(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where} is not JSON: {error.msg} at column {error.colno}. Each line must be one JSON object."
        ) from error
    except (RecursionError, ValueError) as error:
        raise UserError(f"{where} cannot be read: {_too_large(error)}.") from error
    _check_unambiguous(row, where)
    return row


def _too_large(error: RecursionError | ValueError) -> str:
    """Return why Python cannot read valid JSON, and what to do."""
    if isinstance(error, RecursionError):
        return "its values are nested too deeply. Write deep values as text"
    return "a number has too many digits. Write it as text"


@dataclass(slots=True, frozen=True)
class _Repeating:
    """Stands for an object that has a key twice, until the row in which it is can be named."""

    key: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Repeating:
    read = dict(pairs)
    if len(read) == len(pairs):
        return read
    return _Repeating(Counter(key for key, _ in pairs).most_common(1)[0][0])


_JSON = json.JSONDecoder(object_pairs_hook=_object)


def _check_unambiguous(row: object, where: str) -> None:
    """Raise `UserError` for a key that an object has twice, and for NaN and infinite numbers.

    Of the key Python would keep the last value. JSON does not have these numbers, but Python writes and reads them.
    """
    if isinstance(row, _Repeating):
        raise UserError(f"{where} has the key {row.key!r} twice. Remove or rename one.")
    for column, value in row.items() if isinstance(row, dict) else ():
        left = [value]
        while left:
            each = left.pop()
            if isinstance(each, _Repeating):
                raise UserError(f"{where}: {column!r} has an object with the key {each.key!r} twice. Remove one.")
            if isinstance(each, float) and not math.isfinite(each):
                raise UserError(
                    f"{where}: {column!r} has the number {each}, which JSON does not allow. Write null for a missing "
                    "value, or the text in quotes."
                )
            if isinstance(each, dict | list):
                left += each.values() if isinstance(each, dict) else each


def _json_rows(path: Path) -> RawRows:
    """Read a file that is a list of rows, or JSON lines."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        rows = _JSON.decode(text) if text.lstrip().startswith("[") else None
    except json.JSONDecodeError as error:
        raise UserError(f"The dataset file {path} cannot be read: {error}. Check that it is complete.") from error
    except (RecursionError, ValueError) as error:
        raise UserError(f"The dataset file {path} cannot be read: {_too_large(error)}.") from error
    if rows is None:
        yield from _jsonl_rows(path)
        return
    for number, row in enumerate(rows, 1):
        _check_unambiguous(row, f"{path}, row {number}")
        yield f"{path}, row {number}", row


def _csv_rows(path: Path) -> RawRows:
    """Read a file whose first line names the columns. All values are strings."""
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            _check_columns(reader.fieldnames or (), path)
            for number, row in enumerate(reader, 1):
                if None in row or None in row.values():
                    raise UserError(
                        f"{path}, row {number} does not have one value for each of the columns "
                        f"{', '.join(reader.fieldnames or ())}. Quote values that contain commas or line ends."
                    )
                yield f"{path}, row {number}", row
    except csv.Error as error:
        raise UserError(
            f"The dataset file {path} cannot be read after row {number}: {error}. Check that it is complete, or save "
            "the dataset as JSONL."
        ) from error


def _check_columns(names: Sequence[str], path: Path) -> None:
    """Raise `UserError` for two columns of one name, and for columns that are not separated by commas."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"{path}, line 1 names {count} columns {name!r}. Remove or rename all but one.")
    for mark, separator in (("';'", ";"), ("tabs", "\t")):
        if len(names) == 1 and separator in names[0]:
            raise UserError(
                f"{path} seems to be separated by {mark}: its first line has the one column {names[0]!r}. Separate the "
                f"columns by commas: pandas.read_csv({path.name!r}, sep={separator!r}).to_csv({path.name!r}, "
                "index=False), or choose the comma where a spreadsheet exports the file."
            )


def _parquet_rows(path: Path) -> RawRows:
    pyarrow = _pyarrow(path)
    import pyarrow.parquet as parquet

    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for row in _batch_rows(batch):
                number += 1
                yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise _incomplete(path, number, error) from error


def _arrow_rows(paths: list[Path]) -> RawRows:
    """Read files of `save_to_disk`: Arrow streams, which do not need the library `datasets`."""
    number = 0
    for path in paths:
        pyarrow = _pyarrow(path)
        try:
            with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
                for batch in stream:
                    for row in _batch_rows(batch):
                        number += 1
                        yield f"{path.parent}, row {number}", row
        except (pyarrow.ArrowException, ValueError, OSError) as error:
            raise _incomplete(path, number, error) from error


def _batch_rows(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a `pyarrow.RecordBatch`."""
    kinds = {field.name: field.type for field in batch.schema if "arrow.json" in str(field.type)}
    return [row | {name: _parsed(row[name], kind) for name, kind in kinds.items()} for row in batch.to_pylist()]


def _parsed(value: Any, kind: Any) -> Any:
    """Parse JSON text in a value of the type `kind`.

    `datasets` stores values as JSON text if their types differ from row to row, as arguments of tools do.
    """
    if value is None:
        return None
    if getattr(kind, "extension_name", None) == "arrow.json":
        return json.loads(value)
    if isinstance(value, list):
        return [_parsed(each, kind.value_type) for each in value]
    return {field.name: _parsed(value[field.name], field.type) for field in kind} if isinstance(value, dict) else value


def _incomplete(path: Path, number: int, error: Exception) -> UserError:
    return UserError(
        f"The dataset file {path} cannot be read after row {number}: {str(error).rstrip('.')}. Check that it is "
        "complete: write or download it again."
    )


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            f"Reading {path} needs pyarrow, which is not installed: pip install 'agentloop[parquet]', or save the "
            "dataset as JSONL."
        ) from error
    return pyarrow


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}. Save the dataset again.") from error
    return read if isinstance(read, dict) else {}
