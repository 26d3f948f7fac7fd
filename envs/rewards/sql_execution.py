"""Rewards for SQL: compare the rows of the query with those of the gold query."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards.base import Outcome, Reward
from agentloop.envs.rewards.texts import assistant_turns, inside, last_fence, turn_text
from agentloop.errors import UserError
from agentloop.process.threads import REWARDS
from agentloop.tools.sql.comparators import comparator, sorts, test_suite
from agentloop.tools.sql.databases import Database, Databases
from agentloop.tools.sql.postgres import PostgresDatabase

if TYPE_CHECKING:
    from agentloop.tools.sql.results import QueryResult
    from agentloop.types.trajectory import Trajectory

_FENCES = ("sql", "sqlite", "postgresql", "duckdb")
_MAX_ROWS, _MAX_BYTES = 100_000, 16 << 20
"""Limits on one result. A gold query that exceeds them cannot be judged; any other query is wrong."""


class SqlExecution(Reward):
    """Reward of 1.0 if the query returns the rows of the gold query on all databases of the row, else 0.0.

    The query is the last `<tag>` of the final text, its last SQL fence, or the text itself. If the gold query fails or
    a database is not readable, the trajectory has no reward, because that is not the model's fault.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        database_field: str = "database",
        folder: str = ".",
        gold_field: str = "answer",
        compare: str = "bird_set",
        tag: str | None = None,
        timeout: float = 30.0,
        workers: int = 4,
        gold_database: str | None = None,
    ) -> None:
        """Open `database`: a SQLite or DuckDB file, or postgresql://... By default each row names its own.

        A row names a file below `folder`, or a list of them, in its column `database_field`. `gold_field` is the column
        of the gold query. `compare` is bird_set, multiset, ordered or test_suite. `timeout` is the maximum seconds of a
        query, `workers` the number of concurrent queries. `gold_database` is `database` with another PostgreSQL role,
        for gold queries. Raises `UserError` for invalid options.
        """
        if timeout <= 0 or workers < 1:
            raise UserError("timeout and workers of sql_execution must be above 0.")
        self._same = comparator(compare)
        self._field, self._gold_field = database_field, gold_field
        self._tag = tag
        self._seconds = timeout
        self._databases = Databases(database, folder, workers)
        self._gold = Databases(gold_database, folder, workers)
        if isinstance(self._databases.common, PostgresDatabase) and gold_database is None:
            raise UserError(
                "sql_execution on PostgreSQL needs gold_database, the same database with another role, because the "
                "model's queries may see all queries of their role."
            )

    async def start(self) -> None:
        """Check the databases. Raises `UserError` if one is not usable, or if both have the same role."""
        await self._databases.start()
        await self._gold.start()
        common, gold = self._databases.common, self._gold.common
        if isinstance(common, PostgresDatabase) and isinstance(gold, PostgresDatabase) and common.role == gold.role:
            raise UserError(
                f"gold_database of sql_execution has the same role {gold.role!r} as database: use another one."
            )

    async def shutdown(self) -> None:
        await self._databases.shutdown()
        await self._gold.shutdown()

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Outcome:
        """Judge the query.

        Raises `LookupError`, `UserError` and `GoldQueryError` for rows that cannot be judged, and `ToolError` if a
        database fails.
        """
        gold = task.get(self._gold_field)
        if not isinstance(gold, str):
            raise LookupError(f"the row has no gold query in its column {self._gold_field!r}")
        databases = await self._databases_of(task)
        query = self._query_of(trajectory)
        if not query:
            return {"reward": 0.0, "ran": 0.0}
        ran = 1.0
        for database in databases:
            predicted, wanted = await asyncio.gather(
                self._run(database, query), self._run(self._gold.common or database, gold)
            )
            ran = min(ran, float(predicted.ok))
            # In a thread, because comparing many rows or permutations of many columns takes long.
            if not await REWARDS.run(self._matches, predicted, wanted, gold):
                return {"reward": 0.0, "ran": ran}
        return {"reward": 1.0, "ran": ran}

    def _query_of(self, trajectory: Trajectory) -> str:
        text = trajectory.final_text
        if self._tag is None:
            return (last_fence(text, *_FENCES) or text).strip()
        found = inside(text, self._tag)
        return (last_fence(found[-1], *_FENCES) or found[-1]).strip() if found else ""

    def _matches(self, predicted: QueryResult, wanted: QueryResult, gold: str) -> bool:
        same = partial(test_suite, order_matters=sorts(gold)) if self._same is test_suite else self._same
        return same(predicted, wanted)

    async def _run(self, database: Database, sql: str) -> QueryResult:
        return await database.query(sql, seconds=self._seconds, max_rows=_MAX_ROWS, max_bytes=_MAX_BYTES)

    async def _databases_of(self, task: Mapping[str, Any]) -> list[Database]:
        if self._databases.common is not None:
            return [self._databases.common]
        named = task.get(self._field)
        names = [named] if isinstance(named, str) else named
        if not names or not isinstance(names, list | tuple):
            raise LookupError(f"the row names no database in its column {self._field!r}")
        return [await self._databases.named(name) for name in names]


class SkyRlSql(SqlExecution):
    """SkyRL-SQL's reward: 1.0 for correct rows, 0.0 for others, -1.0 for a wrong format.

    The format requires exactly one `<solution>`, in the last turn. At least one turn must think, and every turn after
    an observation must begin with thinking. `compare` is bird_set as in SkyRL-SQL, which ignores duplicate rows;
    multiset does not.
    """

    def __init__(self, database: str | None = None, *, compare: str = "bird_set", **options: Any) -> None:
        """Set the options of `SqlExecution`, with the tag `solution`."""
        super().__init__(database, compare=compare, tag="solution", **options)

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Outcome:
        if not _well_formed([turn_text(message) for message in assistant_turns(trajectory)]):
            return {"reward": -1.0, "ran": 0.0, "well_formed": 0.0}
        outcome = await super().__call__(trajectory, task)
        assert isinstance(outcome, Mapping)
        return {**outcome, "well_formed": 1.0}


def _well_formed(turns: list[str]) -> bool:
    marks = [sum(turn.count(mark) for turn in turns) for mark in ("<solution>", "</solution>")]
    return (
        marks == [1, 1]
        and len(inside(turns[-1], "solution")) == 1
        and any(inside(turn, "think") for turn in turns)
        and all(turn.lstrip().startswith("<think>") for turn in turns[1:])
    )
