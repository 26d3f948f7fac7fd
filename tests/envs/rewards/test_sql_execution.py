import sqlite3

import pytest

from agentloop.envs.rewards import load_reward
from agentloop.errors import UserError
from agentloop.tools.sql.comparators import GoldQueryError

pytestmark = pytest.mark.slow

GOLD = "SELECT name FROM people WHERE age > 30 ORDER BY name"


@pytest.fixture
def folder(tmp_path):
    for place, ages in (("one", (31, 40, 20)), ("two", (20, 20, 99))):
        connection = sqlite3.connect(tmp_path / f"{place}.sqlite")
        connection.execute("CREATE TABLE people (name TEXT, age INT)")
        connection.executemany("INSERT INTO people VALUES (?, ?)", zip(("Ann", "Bob", "Cy"), ages, strict=True))
        connection.commit()
        connection.close()
    return tmp_path


@pytest.fixture
async def judge(folder, episode):
    """(text, row, **options) -> the reward."""
    made = []

    async def run(*turns, row=None, name="sql_execution", **options):
        reward = load_reward(name, {"folder": str(folder), "workers": 1, **options})
        made.append(reward)
        await reward.start()
        return await reward(episode(*turns), {"database": "one.sqlite", "answer": GOLD, **(row or {})})

    yield run
    for reward in made:
        await reward.shutdown()


async def test_query_is_found_in_the_answer(judge):
    query = "SELECT name FROM people WHERE age >= 31"
    assert await judge(query) == 1.0
    assert await judge(f"Look:\n```sql\n{query};\n```\nThat is it.") == 1.0
    assert await judge(f"<sql>SELECT 1</sql> <sql>{query}</sql>", tag="sql") == 1.0
    assert await judge(query, tag="sql") == 0.0
    assert await judge("I do not know") == 0.0
    assert await judge("") == 0.0


async def test_every_comparator_scores(judge):
    twice = "SELECT name FROM people WHERE age > 30 UNION ALL SELECT name FROM people WHERE age > 30"
    backwards = "SELECT name FROM people WHERE age > 30 ORDER BY name DESC"
    assert [await judge(twice, compare=each) for each in ("bird_set", "multiset")] == [1.0, 0.0]
    assert [await judge(backwards, compare=each) for each in ("multiset", "ordered")] == [1.0, 0.0]
    # The reference sorts, so that the order counts; one that does not leaves it open.
    assert await judge(backwards, compare="test_suite") == 0.0
    assert await judge(backwards, compare="test_suite", row={"answer": GOLD.partition(" ORDER")[0]}) == 1.0


async def test_query_must_be_right_on_every_database(judge):
    chance = "SELECT name FROM people WHERE name < 'Bz'"
    assert await judge(chance) == 1.0
    assert await judge(chance, row={"database": ["one.sqlite", "two.sqlite"]}) == 0.0


async def test_failed_query_is_wrong_and_failed_reference_raises(judge):
    assert await judge("DROP TABLE people") == 0.0
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    assert await judge(endless, timeout=0.3) == 0.0
    for gold, words in (("SELECT FROM", "syntax error"), (endless, "timed out")):
        with pytest.raises(GoldQueryError, match=words):
            await judge("SELECT 1", row={"answer": gold}, timeout=0.3)


async def test_rows_without_database_or_query_raise(judge):
    with pytest.raises(LookupError, match="no gold query in its column 'answer'"):
        await judge("SELECT 1", row={"answer": None})
    with pytest.raises(LookupError, match="names no database"):
        await judge("SELECT 1", row={"database": None})
    with pytest.raises(UserError, match=r"Cannot read the database .*three\.sqlite"):
        await judge("SELECT 1", row={"database": "three.sqlite"})


@pytest.mark.parametrize(
    ("turns", "value"),
    [
        ([("hm", f"<solution>{GOLD}</solution>")], 1.0),
        ([("hm", "calling"), ("so", f"<solution>{GOLD}</solution>")], 1.0),
        ([("hm", "<solution>SELECT 1</solution>")], 0.0),
        ([("hm", "calling"), f"<solution>{GOLD}</solution>"], -1.0),
        ([f"<solution>{GOLD}</solution>"], -1.0),
        ([("hm", GOLD)], -1.0),
        ([("hm", f"<solution>{GOLD}</solution><solution>{GOLD}</solution>")], -1.0),
        ([("hm", f"<solution>{GOLD}")], -1.0),
        ([("hm", f"<solution>{GOLD}</solution>"), ("so", "done")], -1.0),
    ],
)
async def test_skyrl_sql_scores(judge, turns, value):
    assert await judge(*turns, name="skyrl_sql") == value
