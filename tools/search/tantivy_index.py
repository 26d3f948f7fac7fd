"""Full-text index in a folder with tantivy (Rust), ranked by BM25, for corpora of millions of passages.

It needs `pip install 'agentloop[tantivy]'`. Title and text are one field, so that both kinds of index rank by the same
counts. Their scores differ only by constants.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentloop.errors import ToolError, UserError
from agentloop.process.atomic import atomic_folder
from agentloop.tools.search.index import MAX_QUERY_CHARS, MAX_TERMS
from agentloop.tools.search.passages import Passage
from agentloop.types.messages import valid_text

FORMAT = "agentloop tantivy index 1"
_ABOUT = "agentloop.txt"
_TOKENIZER = "words"
_HEAP_BYTES = 256 << 20
_BATCH = 10_000


def build(corpus: Iterable[Passage], path: str | Path, on_progress: Callable[[int], None] | None = None) -> int:
    """Write an index of passages and return their number. The folder appears atomically and replaces an older index.

    `on_progress` gets the number of passages now and then. Raises `UserError` for an empty corpus and if `path` exists
    and is not an index.
    """
    path = Path(path)
    if path.exists() and not (path / _ABOUT).is_file():
        raise UserError(f"{path} exists and is not a search index: choose another folder, or remove it.")
    with atomic_folder(path) as temporary:
        count = _write(corpus, temporary, on_progress or (lambda done: None))
        (temporary / _ABOUT).write_text(FORMAT, encoding="utf-8")
    return count


def _write(corpus: Iterable[Passage], folder: Path, on_progress: Callable[[int], None]) -> int:
    index = _tantivy().Index(_schema(), path=str(folder))
    index.register_tokenizer(_TOKENIZER, _words())
    # A single thread keeps passages of equal score in the order of the corpus.
    writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)
    try:
        count = 0
        for passage in corpus:
            writer.add_document(_document(passage, number=count))
            count += 1
            if count % _BATCH == 0:
                on_progress(count)
        if not count:
            raise UserError("The corpus has no passages: there is nothing to index.")
        writer.commit()
        writer.wait_merging_threads()
    finally:
        del writer  # stops its threads, which write to the folder
    on_progress(count)
    return count


class TantivyIndex:
    """`Retriever` over a folder that `build` wrote."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._searcher: Any = None

    async def start(self) -> None:
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        tantivy = _tantivy()
        try:
            what = (self._path / _ABOUT).read_text(encoding="utf-8")
            if what != FORMAT:
                raise UserError(f"{self._path} has the format {what!r}, expected {FORMAT!r}: build it again.")
            index = tantivy.Index.open(str(self._path))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self._path} is not a search index: {error}. Build one: agentloop tools index CORPUS {self._path} "
                "--engine tantivy"
            ) from error
        index.register_tokenizer(_TOKENIZER, _words())
        self._index, self._searcher = index, index.searcher()

    async def retrieve(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        if self._searcher is None:
            await self.start()
        try:
            return list(await asyncio.gather(*(asyncio.to_thread(self._search, query, topk) for query in queries)))
        except (OSError, ValueError) as error:
            raise ToolError(f"The search index cannot be read: {error}.") from error

    def _search(self, query: str, topk: int) -> list[Passage]:
        tantivy = _tantivy()
        asked = dict.fromkeys(_words().analyze(valid_text(query[:MAX_QUERY_CHARS])))
        counts = {term: self._searcher.doc_freq("words", term) for term in asked}
        rarest = sorted((term for term in counts if counts[term]), key=counts.__getitem__)[:MAX_TERMS]
        if not rarest:
            return []
        schema = self._index.schema
        terms = [(tantivy.Occur.Should, tantivy.Query.term_query(schema, "words", term, "freq")) for term in rarest]
        hits = self._searcher.search(tantivy.Query.boolean_query(terms), limit=topk, count=False).hits
        return [self._passage(address, score) for score, address in hits]

    def _passage(self, address: Any, score: float) -> Passage:
        identifier, title, text = json.loads(self._searcher.doc(address)["passage"][0])
        return Passage(identifier, title, text, score)

    async def close(self) -> None:
        self._searcher = None


@cache
def _words() -> Any:
    """Return an analyzer that folds case and accents like SQLite's `unicode61 remove_diacritics 2`."""
    tantivy = _tantivy()
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    return builder.filter(tantivy.Filter.lowercase()).filter(tantivy.Filter.ascii_fold()).build()


def _schema() -> Any:
    builder = _tantivy().SchemaBuilder()
    builder.add_text_field("words", tokenizer_name=_TOKENIZER, index_option="freq")
    builder.add_bytes_field("passage", stored=True)
    return builder.build()


def _document(passage: Passage, number: int) -> Any:
    document = _tantivy().Document(words=valid_text(f"{passage.title}\n{passage.text}"))
    document.add_bytes("passage", json.dumps([passage.id or str(number), passage.title, passage.text]).encode())
    return document


def _tantivy() -> Any:
    try:
        import tantivy
    except ImportError as error:
        raise UserError("This search index needs tantivy: pip install 'agentloop[tantivy]'.") from error
    return tantivy
