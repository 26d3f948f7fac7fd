"""Tiny run of text_to_sql in SkyRL-SQL's format: the schema does not tell which table has a planet.

    agentloop sft recipes/text_to_sql/tiny_sft.yaml

makes the checkpoint from that of `tiny`, by a warm-up on traces about invented numbers. Half of them query the fact of
the question, the others any fact. Some submit a query without trying it, and some ignore an empty result. Reinforcement
learning must teach the model to try, to query the right fact and to trust the database.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentloop.process.atomic import atomic_file
from agentloop.recipes.tiny.traces import drawn_rows
from agentloop.rendering.inline import InlineFormat
from agentloop.tools.sql.results import QueryResult, as_text
from agentloop.types.messages import Message, ToolCall

FORMAT = InlineFormat(tag="sql", tool="sql_query", argument="sql", result="\n\n<observation>{}</observation>\n\n")
"""SkyRL-SQL's format of calls."""

TABLES = ("north", "south")
FACTS = ("mass", "age", "size", "speed")
PLANETS = range(10, 100)
"""Numbers of two digits, because copying longer numbers twice is hard for so small a model."""
SCHEMA = "\n".join(f"create table {table} (id, {', '.join(FACTS)});" for table in TABLES)
NUM_DATABASES = {"train": 8, "held-out": 4}
"""Number of databases. Each has its own numbers and tables, so answers of others do not help."""

GUESS_SHARE = 0.3
"""Share of the warm-up traces that submit a query without trying it."""
LISTENING_SHARE = 0.5
"""Share of the choices of fact and table that follow the question and the result."""


def question(fact: str, planet: int) -> str:
    """Return the question about a fact."""
    return f"What is the {fact} of planet {planet}?"


def query(fact: str, table: str, planet: int) -> str:
    """Return the query of a fact."""
    return f"select {fact} from {table} where id = {planet}"


def train_rows(folder: str, num_rows: int = 4096, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield training rows: `prompt`, `database` (a file that is written to `folder`), `answer` (the query)."""
    return _rows("train", Path(folder), num_rows, seed)


def held_out_rows(folder: str, num_rows: int = 96, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield evaluation rows, about databases that are not in training."""
    return _rows("held-out", Path(folder), num_rows, seed)


def _rows(split: str, folder: Path, num_rows: int, seed: int) -> Iterator[dict[str, Any]]:
    names = [f"{split}-{number}.sqlite" for number in range(NUM_DATABASES[split])]
    place_of = {name: write_database(folder / name, seed=name) for name in names}
    rng = random.Random(f"{split}-{seed}")
    for index in range(num_rows):
        name, planet, fact = rng.choice(names), rng.choice(PLANETS), FACTS[index % len(FACTS)]
        yield {
            "id": f"{split}-{seed}-{index}",
            "prompt": [{"role": "user", "content": prompt(fact, planet)}],
            "database": name,
            "answer": query(fact, place_of[name][planet], planet),
        }


def prompt(fact: str, planet: int) -> str:
    """Return the schema and the question."""
    return f"{SCHEMA}\n{question(fact, planet)}"


def write_database(path: Path, seed: str) -> dict[int, str]:
    """Write a database atomically and return the table of each planet.

    A planet is in one table, with numbers that no other planet has.
    """
    rng = random.Random(seed)
    columns = [rng.sample(range(100, 1000), len(PLANETS)) for _ in FACTS]
    place_of = {planet: rng.choice(TABLES) for planet in PLANETS}
    with atomic_file(path) as temporary:
        with sqlite3.connect(temporary) as connection:
            connection.executescript(SCHEMA)
            for row in zip(PLANETS, *columns, strict=True):
                connection.execute(f"insert into {place_of[row[0]]} values ({', '.join('?' * len(row))})", row)
        connection.close()
    return place_of


def trace(rng: random.Random) -> list[Message]:
    """Draw a conversation about invented numbers."""
    planet, asked = rng.choice(PLANETS), rng.choice(FACTS)
    ask: Message = {"role": "user", "content": prompt(asked, planet)}
    fact = asked if rng.random() < LISTENING_SHARE else rng.choice(FACTS)
    tried, other = rng.sample(TABLES, 2)
    if rng.random() < GUESS_SHARE:
        return [ask, _submits(f"The {fact}, I guess in {tried}.", query(fact, tried, planet))]
    call = ToolCall("sql_query", {"sql": query(fact, tried, planet)}, id="call_0")
    turn: Message = {"role": "assistant", "content": "", "reasoning_content": f"The {fact}, I try {tried}."}
    turn["tool_calls"] = [call.as_dict()]
    is_there = rng.random() < 0.5
    found = QueryResult(columns=[fact], rows=[(rng.randrange(100, 1000),)] if is_there else [])
    right = tried if is_there else other
    chosen = right if rng.random() < LISTENING_SHARE else rng.choice(TABLES)
    answer: Message = {"role": "tool", "content": as_text(found)}
    return [ask, turn, answer, _submits(f"It is in {chosen}.", query(fact, chosen, planet))]


def _submits(thinking: str, sql: str) -> Message:
    content = f"<solution>{sql}</solution>"
    return {"role": "assistant", "content": content, "reasoning_content": thinking}


def warmup_rows(num_rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the conversations of the warm-up."""
    return drawn_rows(trace, num_rows, seed)
