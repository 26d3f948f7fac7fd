"""The generated databases, questions and traces of the small run."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentloop.api.recipe import load_run_config
from agentloop.recipes.text_to_sql.tiny_task import (
    FACTS,
    FORMAT,
    PLANETS,
    TABLES,
    held_out_rows,
    trace,
    train_rows,
    write_database,
)
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.rendering.conversation import conversation_trajectory

CONFIG = Path(__file__).parents[3] / "recipes" / "text_to_sql" / "tiny.yaml"


def rows_of(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_every_planet_is_in_one_table_with_unique_numbers(tmp_path):
    place_of = write_database(tmp_path / "a.sqlite", seed="a")
    found = {table: {row[0] for row in rows_of(tmp_path / "a.sqlite", f"select id from {table}")} for table in TABLES}
    assert found == {table: {planet for planet in PLANETS if place_of[planet] == table} for table in TABLES}
    assert min(map(len, found.values())) > len(PLANETS) / 3
    for fact in FACTS:
        rows = [row for table in TABLES for row in rows_of(tmp_path / "a.sqlite", f"select {fact} from {table}")]
        assert len(set(rows)) == len(PLANETS)


def test_seed_determines_the_database(tmp_path):
    first = write_database(tmp_path / "a.sqlite", seed="a")
    content = rows_of(tmp_path / "a.sqlite", "select * from north")
    assert write_database(tmp_path / "a.sqlite", seed="a") == first
    assert rows_of(tmp_path / "a.sqlite", "select * from north") == content
    assert write_database(tmp_path / "b.sqlite", seed="b") != first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sqlite", "b.sqlite"]


@pytest.mark.slow
def test_reference_query_returns_the_fact_and_the_other_table_nothing(tmp_path):
    for row in [*train_rows(str(tmp_path), num_rows=20), *held_out_rows(str(tmp_path), num_rows=20)]:
        sql, path = row["answer"], tmp_path / row["database"]
        assert len(rows_of(path, sql)) == 1
        other = sql.replace("north", "?").replace("south", "north").replace("?", "south")
        assert rows_of(path, other) == []


def test_held_out_databases_are_not_in_the_training_data(tmp_path):
    trained = {row["database"] for row in train_rows(str(tmp_path), num_rows=500)}
    held_out = {row["database"] for row in held_out_rows(str(tmp_path))}
    assert trained
    assert held_out
    assert not trained & held_out


def test_traces_follow_the_format_and_mix_both_tables():
    renderer = renderer_for(build_tokenizer(), inline=FORMAT)
    rng = random.Random(0)
    tried = guessed = 0
    for _ in range(200):
        messages = trace(rng)
        trajectory = conversation_trajectory(messages, renderer)
        assert len(trajectory) < 256
        segment = next(trajectory.sampled_segments())
        parsed = renderer.parse(trajectory.token_ids[segment.start : segment.end].tolist())
        tried += len(parsed.calls)
        guessed += not parsed.calls
        assert "<think>" in parsed.content
        assert messages[-1]["content"].startswith("<solution>select")
    assert tried > guessed > 20


def test_config_uses_the_trace_format():
    inline = load_run_config(str(CONFIG), []).rendering.inline
    assert {name: getattr(inline, name) for name in FORMAT.__slots__} == {
        name: getattr(FORMAT, name) for name in FORMAT.__slots__
    }
