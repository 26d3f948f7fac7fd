"""Full-text index in one file: SQLite's FTS5, ranked by BM25. It needs no packages and no server."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from agentloop.errors import ToolError, UserError
from agentloop.process.atomic import atomic_file
from agentloop.tools.search.passages import Passage, passage_of
from agentloop.types.messages import valid_text

FORMAT = "agentloop search index 1"
MAX_TERMS = 16
"""Maximum terms of a query. The rarest terms are kept, because they narrow the search most."""
MAX_QUERY_CHARS = 10_000
TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst")
"""Suffixes, in any case, of the files of a folder that are read as text."""
_TERM = re.compile(r"[^\W_]+")
"""A word as FTS5 cuts it: its tokenizer also separates words at underscores."""
_BATCH = 10_000
_TOKENIZER = "unicode61 remove_diacritics 2"


def build(corpus: Iterable[Passage], path: str | Path, on_progress: Callable[[int], None] | None = None) -> int:
    """Write an index of passages and return their number. The file appears atomically.

    `on_progress` gets the number of passages after each batch. Raises `UserError` for an empty corpus and if `path`
    exists and is not an index.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder, but this index is a file: choose another path.")
    if path.exists() and not _is_index(path):
        raise UserError(f"{path} exists and is not a search index: choose another file, or remove it.")
    with atomic_file(path) as temporary, closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
        connection.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; CREATE TABLE about (what TEXT);"
            "CREATE TABLE passages (number INTEGER PRIMARY KEY, id TEXT, title TEXT, text TEXT);"
            f"CREATE VIRTUAL TABLE found USING fts5(title, text, content=passages, content_rowid=number, "
            f"tokenize='{_TOKENIZER}');"
            "CREATE VIRTUAL TABLE terms USING fts5vocab(found, row);"
        )
        count = 0
        for batch in _batches(corpus):
            rows = [
                (count + i, valid_text(p.id) or str(count + i), valid_text(p.title), valid_text(p.text))
                for i, p in enumerate(batch)
            ]
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO passages VALUES (?, ?, ?, ?)", rows)
            connection.executemany(
                "INSERT INTO found(rowid, title, text) VALUES (?, ?, ?)", [(row[0], row[2], row[3]) for row in rows]
            )
            connection.execute("COMMIT")
            count += len(rows)
            if on_progress is not None:
                on_progress(count)
        if not count:
            raise UserError("The corpus has no passages: there is nothing to index.")
        connection.execute("INSERT INTO found(found) VALUES ('optimize')")
        connection.execute("INSERT INTO about VALUES (?)", (FORMAT,))
    return count


def _is_index(path: Path) -> bool:
    """Return whether a file is an index of any format."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT what FROM about").fetchone() is not None
    except sqlite3.Error:
        return False


def read_corpus(path: str | Path, on_skipped: Callable[[int], None] | None = None) -> Iterator[Passage]:
    """Yield the passages of a JSONL file, or one passage per file of a folder with one of the `TEXT_SUFFIXES`.

    A line of JSONL has `id` and `contents`, or `title` and `text`. `on_skipped` gets the number of files of a folder
    with other suffixes. Raises `UserError` with the line that is malformed.
    """
    path = Path(path)
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file())
        files = [file for file in found if file.suffix.lower() in TEXT_SUFFIXES]
        if on_skipped is not None:
            on_skipped(len(found) - len(files))
        if not files:
            raise UserError(f"The folder {path} has no text files: their names end in {', '.join(TEXT_SUFFIXES)}.")
        for file in files:
            name = str(file.relative_to(path))
            yield Passage(name, file.stem, file.read_text(encoding="utf-8", errors="replace"))
        return
    try:
        lines = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"Cannot read the corpus {path}: {error.strerror}.") from error
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                document = json.loads(line)
                if not isinstance(document, dict):
                    raise ValueError("expected a JSON object")
                yield passage_of(document)
            except ValueError as error:
                raise UserError(f"{path}, line {number} is not a document: {error}.") from error


class LocalIndex:
    """`Retriever` over a file that `build` wrote."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._local = threading.local()

    async def start(self) -> None:
        await asyncio.to_thread(self._check)

    def _check(self) -> None:
        try:
            (what,) = self._connection().execute("SELECT what FROM about").fetchone()
        except (sqlite3.Error, TypeError) as error:
            raise UserError(
                f"{self._path} is not a search index: {error}. Build one: agentloop tools index CORPUS {self._path}"
            ) from error
        if what != FORMAT:
            raise UserError(f"{self._path} has the format {what!r}, expected {FORMAT!r}: build it again.")

    async def retrieve(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        # In threads: SQLite releases the GIL while it searches.
        try:
            return list(await asyncio.gather(*(asyncio.to_thread(self._search, query, topk) for query in queries)))
        except sqlite3.Error as error:
            raise ToolError(f"The search index cannot be read: {error}.") from error

    def _search(self, query: str, topk: int) -> list[Passage]:
        connection = self._connection()
        # As one character each, because a pattern of words splits a letter from an accent that follows it.
        words = _TERM.findall(unicodedata.normalize("NFC", query[:MAX_QUERY_CHARS]))
        # FTS5 folds the case itself, and not like Python: `lower` makes two characters of the Turkish İ.
        terms = self._rarest(connection, {word.lower(): word for word in words}.values())
        if not terms:
            return []
        # Quotes turn a term into plain text without operators.
        match = " OR ".join(f'"{term}"' for term in terms)
        rows = connection.execute(
            "SELECT p.id, p.title, p.text, -f.rank FROM (SELECT rowid, rank FROM found WHERE found MATCH ? ORDER BY "
            "rank LIMIT ?) AS f JOIN passages AS p ON p.number = f.rowid ORDER BY f.rank",
            (match, topk),
        )
        return [Passage(*row) for row in rows]

    @staticmethod
    def _rarest(connection: sqlite3.Connection, terms: Iterable[str]) -> list[str]:
        """Return the rarest of the terms that are in the index."""
        counts = {}
        for term in terms:
            # The tokenizer also folds accents. Keep such terms: only the search itself can look them up.
            row = connection.execute("SELECT doc FROM terms WHERE term = ?", (term.lower(),)).fetchone()
            if row is not None or not term.isascii():
                counts[term] = row[0] if row else 0
        return sorted(counts, key=counts.__getitem__)[:MAX_TERMS]

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this thread. The file never changes."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            uri = f"file:{quote(str(self._path.resolve()))}?mode=ro&immutable=1"
            connection = self._local.connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
            connection.execute("PRAGMA mmap_size = 1073741824")
        return connection

    async def close(self) -> None:
        """Do nothing: connections close with their threads."""


def _batches(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    batch: list[Passage] = []
    for passage in passages:
        batch.append(passage)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
