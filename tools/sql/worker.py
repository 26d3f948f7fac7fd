"""Script that queries database files in a separate process, because the database's C code can only be killed with it.

It uses the standard library only, and duckdb for DuckDB files. Requests on stdin and answers on stdout are JSON lines.
"""

from __future__ import annotations

import base64
import json
import resource
import sqlite3
import sys
import time
from decimal import Decimal
from typing import Any

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_REFUSED_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "randomblob", "zeroblob"}
"""Functions that read or write files, load code, or (the last two) allocate gigabytes."""
_MAX_VALUE_BYTES = 5_000_000
_HEAP_BYTES = 256 << 20
_STEPS_BETWEEN_LOOKS = 10_000


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    if action in _ALLOWED:
        is_pragma = action == sqlite3.SQLITE_READ and (first or "").lower().startswith("pragma_")
        return sqlite3.SQLITE_DENY if is_pragma else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _REFUSED_FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _open_sqlite(path: str) -> sqlite3.Connection:
    from urllib.parse import quote

    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True, isolation_level=None)
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA trusted_schema = 0")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA hard_heap_limit = {_HEAP_BYTES}")
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
        (sqlite3.SQLITE_LIMIT_VDBE_OP, 100_000),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(limit, value)
    connection.set_authorizer(_authorize)
    return connection


def _open_duckdb(path: str) -> Any:
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "access_mode": "READ_ONLY",
        "enable_external_access": "false",  # no files, no network, no extensions
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "memory_limit": f"{_HEAP_BYTES >> 20}MB",
        "threads": "1",
        "temp_directory": "",
        "lock_configuration": "true",
    }
    return duckdb.connect(path, config=settings)


def _check_duckdb(sql: str) -> None:
    """Refuse all but one reading statement, because DuckDB runs several and does not count all changes as writes."""
    import duckdb

    statements = duckdb.extract_statements(sql)
    if len(statements) != 1 or statements[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise ValueError("the query must be a single statement that only reads")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)  # dates, lists of duckdb


def _query(request: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + request["timeout"]
    if "\0" in request["sql"]:
        raise ValueError("the query contains a NUL character")
    connection = (_open_duckdb if request["engine"] == "duckdb" else _open_sqlite)(request["path"])
    try:
        if isinstance(connection, sqlite3.Connection):
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
        else:
            _check_duckdb(request["sql"])
        cursor = connection.execute(request["sql"])
        columns = [column[0] for column in cursor.description or ()]
        rows: list[list[Any]] = []
        room, truncated = request["max_bytes"], False
        while (row := cursor.fetchone()) is not None:
            values = [_plain(value) for value in row]
            room -= sum(len(value) if isinstance(value, str) else 16 for value in values)
            if len(rows) == request["max_rows"] or room < 0:
                truncated = True
                break
            rows.append(values)
        return {"columns": columns, "rows": rows, "truncated": truncated}
    finally:
        connection.close()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    return {**_outcome(request), "seconds": time.monotonic() - started}


def _outcome(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return _query(request)
    except sqlite3.OperationalError as error:
        if str(error) == "interrupted":
            return {"timed_out": True}
        return {"error": str(error)}
    except MemoryError:
        return {"error": "out of memory: the result, or a value in it, is too large"}
    # Errors of sqlite and duckdb have no common type, and all concern the query.
    except Exception as error:
        return {"error": str(error) or type(error).__name__}


def main() -> None:
    """Answer requests until stdin ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes only to pipes
    resource.setrlimit(resource.RLIMIT_DATA, (4 * _HEAP_BYTES, 4 * _HEAP_BYTES))
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
