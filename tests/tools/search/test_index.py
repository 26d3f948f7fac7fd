import asyncio
import json
import random
import sqlite3
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import UserError
from agentloop.tools.search import tantivy_index
from agentloop.tools.search.index import LocalIndex, build, read_corpus
from agentloop.tools.search.passages import Passage, Retriever
from agentloop.tools.search.tantivy_index import TantivyIndex

CORPUS = [
    Passage("a", "Oslo", "Oslo is the capital of Norway. It rains there."),
    Passage("b", "Bergen", "Bergen is a city of Norway, known for rain."),
    Passage("c", "Façade", "A façade is the front of a building - not a capital."),
    Passage("d", 'Odd "quotes"', "NEAR AND OR NOT * ^ : - + ( )"),
]


ENGINES = {"sqlite": (build, LocalIndex), "tantivy": (tantivy_index.build, TantivyIndex)}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """(build, class of the index)"""
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def index(engine, tmp_path_factory) -> Retriever:
    write, Index = engine
    path = tmp_path_factory.mktemp("index") / "corpus"
    assert write(CORPUS, path) == 4
    return Index(path)


def search(index: Retriever, *queries: str, topk: int = 3) -> list[list[str]]:
    return [[p.id for p in found] for found in asyncio.run(index.retrieve(queries, topk))]


def test_results_are_sorted_by_score(index):
    assert search(index, "capital of Norway") == [["a", "b", "c"]]
    ((first, second),) = asyncio.run(index.retrieve(["rain norway"], 2))
    assert first.score > second.score > 0
    assert (first.id, first.title) == ("b", "Bergen")


def test_accents_and_case_do_not_matter(index):
    assert search(index, "FACADE", "façade", "Façade") == [["c"], ["c"], ["c"]]


def test_title_is_searched(index):
    assert search(index, "bergen") == [["b"]]


@pytest.mark.parametrize(
    "query",
    [
        *(
            '"',
            '""',
            "*",
            "a*",
            "NEAR(",
            "AND",
            "OR NOT",
            "-title:",
            "title:oslo",
            "(",
            "{a b}",
            "^oslo",
            "+",
            "'",
            ";",
        ),
        *(
            "",
            " ",
            "\0",
            "oslo\0rain",
            "🙂",
            "é" * 50,
            "\ud800",
            "x" * 100_000,
            "oslo " * 20_000,
            "DROP TABLE passages",
        ),
    ],
)
def test_no_query_raises(index, query):
    asyncio.run(index.retrieve([query], 3))


@settings(deadline=None, max_examples=200)
@given(st.text())
def test_any_text_is_a_valid_query(index, query):
    asyncio.run(index.retrieve([query], 3))


def test_operators_are_plain_words(index):
    assert search(index, "near and or", 'zebra" OR "near') == [["d"], ["d"]]


def test_query_without_match_returns_nothing(index):
    assert search(index, "zebra", "") == [[], []]


def test_many_queries_run_concurrently(index):
    before = threading.active_count()
    assert search(index, *["bergen", "façade"] * 50, topk=1) == [["b"], ["c"]] * 50
    assert threading.active_count() < before + 80


def test_long_query_uses_its_rarest_words(engine, tmp_path):
    write, Index = engine
    corpus = [Passage(str(i), "", " ".join(f"common{j}" for j in range(40))) for i in range(50)]
    write([*corpus, Passage("rare", "", "needle")], tmp_path / "i")
    query = " ".join([*(f"common{j}" for j in range(40)), "needle"])
    assert search(Index(tmp_path / "i"), query, topk=1) == [["rare"]]


def test_both_engines_return_the_same_results(tmp_path):
    rng = random.Random(0)
    words = [f"word{number}" for number in range(200)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    corpus = [
        Passage(str(number), rng.choice(words), " ".join(rng.choices(words, weights, k=rng.randint(5, 60))))
        for number in range(500)
    ]
    for name, (write, _) in ENGINES.items():
        assert write(corpus, tmp_path / name) == 500
    indexes = [Index(tmp_path / name) for name, (_, Index) in ENGINES.items()]
    queries = [" ".join(rng.sample(words[20:], 3)) for _ in range(50)]
    first, second = (search(index, *queries, topk=5) for index in indexes)
    shared = [len(set(a) & set(b)) for a, b in zip(first, second, strict=True)]
    assert min(shared) >= 4, "the lengths of passages are rounded in tantivy: places may change, hardly more"
    assert sum(shared) >= 0.95 * sum(map(len, first))


@pytest.mark.parametrize("query", ["max_passage_chars", "_passage_", "École", "ecole", "İzmir"])
def test_words_are_cut_and_folded_as_in_the_index(engine, tmp_path, query):
    write, Index = engine
    write([Passage("a", "", "Set max_passage_chars. École in İzmir."), Passage("b", "", "")], tmp_path / "i")
    assert search(Index(tmp_path / "i"), query) == [["a"]]


def test_letters_with_separate_accents_are_found_in_sqlite(tmp_path):
    build([Passage("a", "", "İzmir e\u0301cole"), Passage("b", "", "IZMIR école")], tmp_path / "i")
    queries = ["izmir", "İzmir", "e\u0301cole", "école", "ecole"]
    assert search(LocalIndex(tmp_path / "i"), *queries) == [["a", "b"]] * 5


def test_invalid_unicode_text_is_handled(engine, tmp_path):
    write, Index = engine
    write([Passage("", "odd \ud800 title", "needle")], tmp_path / "i")
    assert search(Index(tmp_path / "i"), "needle \ud800") == [["0"]]


def shown(passages) -> list[tuple[str, str, str]]:
    return [(passage.id, passage.title, passage.text) for passage in passages]


def test_corpus_formats_are_read(tmp_path):
    lines = [
        {"id": 7, "contents": '"Title"\nText.'},
        {"_id": "x", "title": "T", "text": "More."},
        {"id": "line", "contents": " A text without a title. "},
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join([json.dumps(line) for line in lines] + [""]))
    assert shown(read_corpus(path)) == [
        ("7", "Title", "Text."),
        ("x", "T", "More."),
        ("line", "", "A text without a title."),
    ]
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.md").write_text("first")
    (folder / "deep" / "b.txt").write_text("second")
    (folder / "c.png").write_bytes(b"no")
    assert shown(read_corpus(folder)) == [("a.md", "a", "first"), ("deep/b.txt", "b", "second")]


@pytest.mark.parametrize("name", ["a.TXT", "a.Md", "a.rst", "a.markdown", "a.text"])
def test_text_files_of_a_folder_are_read(name, tmp_path):
    (tmp_path / name).write_text("words")
    assert shown(read_corpus(tmp_path)) == [(name, "a", "words")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}\n", "line 1 is not a document: a document needs"),
        ('{"contents": "a"}\n[1]\n', "line 2 is not a document: expected a JSON object"),
        ("not json\n", "line 1 is not a document"),
        ('{"contents": 7}\n', "line 1"),
    ],
)
def test_unreadable_line_is_named(content, message, tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        list(read_corpus(path))


def test_missing_files_and_empty_corpora_are_named(tmp_path):
    with pytest.raises(UserError, match="Cannot read the corpus"):
        list(read_corpus(tmp_path / "missing.jsonl"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no text files: their names end in \.txt, \.text, \.md"):
        list(read_corpus(tmp_path / "empty"))
    for write, _ in ENGINES.values():
        with pytest.raises(UserError, match="nothing to index"):
            write([], tmp_path / "i")
    assert not list(tmp_path.glob("i*"))
    (tmp_path / "folder").mkdir()
    for write, Index in ENGINES.values():
        with pytest.raises(UserError, match="agentloop tools index"):
            asyncio.run(Index(tmp_path / "missing").start())
        with pytest.raises(UserError, match="choose another"):
            write(CORPUS, tmp_path / "folder")
    (tmp_path / "other.sqlite").write_bytes(b"no index")
    with pytest.raises(UserError, match="not a search index"):
        asyncio.run(LocalIndex(tmp_path / "other.sqlite").start())
    with sqlite3.connect(tmp_path / "old.sqlite") as connection:
        connection.execute("CREATE TABLE about (what TEXT)")
        connection.execute("INSERT INTO about VALUES ('older')")
    connection.close()
    with pytest.raises(UserError, match="build it again"):
        asyncio.run(LocalIndex(tmp_path / "old.sqlite").start())
    tantivy_index.build(CORPUS, tmp_path / "old")
    (tmp_path / "old" / "agentloop.txt").write_text("older")
    with pytest.raises(UserError, match="build it again"):
        asyncio.run(TantivyIndex(tmp_path / "old").start())


def test_failed_build_keeps_the_old_index(engine, tmp_path):
    write, Index = engine
    path = tmp_path / "i"
    write(CORPUS, path)

    def torn():
        yield CORPUS[0]
        raise UserError("line 2")

    with pytest.raises(UserError, match="line 2"):
        write(torn(), path)
    assert search(Index(path), "bergen") == [["b"]]
    assert [file.name for file in tmp_path.iterdir()] == ["i"]
    write(CORPUS[:1], path)
    assert search(Index(path), "bergen", "oslo") == [[], ["a"]]
