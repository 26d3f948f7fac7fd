"""Real databases: SQLite and DuckDB files, and a PostgreSQL server of the tests' own."""

import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentloop.tools.sql.postgres import REVOKE

ROWS = [(1, "ada", 36.5, None), (2, "bob", 40.0, b"\x00\xff"), (3, "cleo", None, b"")]
SCHEMA = "CREATE TABLE people (id INTEGER, name TEXT, score REAL, photo BLOB)"


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "people.sqlite"
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute(SCHEMA)
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", ROWS)
    connection.close()
    return path


@pytest.fixture
def duckdb_file(tmp_path: Path) -> Path:
    import duckdb

    path = tmp_path / "people.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(SCHEMA.replace("REAL", "DOUBLE"))
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", ROWS)
    return path


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if shutil.which("initdb") is None else []
    if not found and shutil.which("initdb") is None:
        raise RuntimeError("The tests of sql_query start a PostgreSQL server: `apt-get install postgresql`.")
    return found[-1] if found else Path(shutil.which("initdb") or "").parent


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """host:port of a server with a table `people`, the superuser `owner` and the role `reader`, who may only read."""
    # Not among pytest's folders: another pytest that starts takes their parents away from all but root.
    folder = Path(tempfile.mkdtemp(prefix="agentloop-postgres-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    as_user: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        for path in (folder, *folder.parents[:2]):
            path.chmod(0o755)
        shutil.chown(folder, "nobody")
        as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]

    def run(*command: str) -> None:
        done = subprocess.run([*as_user, *command], capture_output=True, text=True, timeout=60, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr

    data, programs = str(folder / "data"), _programs()
    run(str(programs / "initdb"), "-D", data, "-U", "owner", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
    options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
    run(str(programs / "pg_ctl"), "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        import psycopg

        with psycopg.connect(f"postgresql://owner@127.0.0.1:{port}/postgres", autocommit=True) as connection:
            connection.execute("CREATE TABLE people (id INT, name TEXT, score FLOAT8, photo BYTEA)")
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO people VALUES (%s, %s, %s, %s)", ROWS)
            connection.execute("CREATE ROLE reader LOGIN")
            connection.execute("CREATE ROLE writer LOGIN")
            connection.execute("GRANT SELECT ON people TO reader, writer")
            connection.execute("GRANT INSERT ON people TO writer")
            connection.execute("CREATE ROLE judge LOGIN")
            connection.execute("GRANT SELECT ON people TO judge")
            connection.execute(REVOKE)
        yield f"127.0.0.1:{port}"
    finally:
        run(str(programs / "pg_ctl"), "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)
