"""Play scripted episodes through renderer, tools, environment and reward, and report the results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from agentloop import engines
from agentloop.engines.base import SamplingParams
from agentloop.envs.base import BaseEnv
from agentloop.episodes.setup import RolloutSetup, Row
from agentloop.errors import FailureKind, UnscoredError, UserError, with_fix
from agentloop.rendering.formats.base import ToolSchemas
from agentloop.rendering.template_renderer import TemplateRenderer
from agentloop.trainer.rehearsal.calls import sample_turn
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.requests import make_requests, play_all
from agentloop.types.messages import text_of
from agentloop.types.requests import RolloutRequest
from agentloop.types.trajectory import Trajectory

_ANSWER = "<answer>\\boxed{1}</answer> The answer is 1."
"""Answer in the usual formats, so that rewards parse and compare it."""
_MOST_TURNS = 3
_MOST_KINDS = 8
"""Largest number of kinds of rows to play."""
_SHOWN = 70
_OPTIONAL = frozenset({"seed", "env_options", "reset_options", "players", "seat", "files", "tools_kwargs"})
"""Columns that agentloop's own environments and tools read, but that no row needs."""


@dataclass(slots=True, frozen=True)
class Played:
    """Results of the episodes."""

    lines: dict[str, str]
    """Label -> text for the user."""
    warnings: list[str]
    has_tools: bool
    """Whether the first episode has tools."""


class _ReadRow(dict[str, Any]):
    """A row that records which columns are read, and its episode."""

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self.asked: set[str] = set()
        self.env: BaseEnv | None = None
        self.call: tuple[str, list[int]] | None = None
        """Sample call of the first tool, and its tool; None if there is none."""
        self.unscored = ""
        """Why the environment did not score the episode."""

    @property
    def tools(self) -> ToolSchemas:
        """Tools of the episode, from the config or its environment."""
        toolset = None if self.env is None else self.env.toolset
        return () if toolset is None else toolset.schemas

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def play(setup: RolloutSetup, model: Path, *, longest: int) -> Played:
    """Play one scripted episode on the first row, and on the first row with each other set of columns.

    These are rows of data.train, and of data.eval if the run evaluates.
    The script calls the first tool once with sample arguments, and then answers; `model` is the folder of the
    tokenizer. Raises `UserError` if an episode fails, as real episodes on such rows would.
    """
    evaluated = setup.eval if setup.config.eval.every else ()
    splits = chain((("data.train", row) for row in setup.train), (("data.eval", row) for row in evaluated))
    chosen = list(_first_of_each_kind(splits))
    rows = [_ReadRow(row) for _, row in chosen]
    limits = replace(setup.config.limits, max_turns=min(setup.config.limits.max_turns, _MOST_TURNS))
    make_env = partial(_make_env, setup)
    short = replace(setup, train=list(rows), config=setup.config.replace(limits=limits), make_env=make_env)
    requests = make_requests("dry-run", range(len(rows)), n=1, seed=0)
    row_of = {request.trajectory_id(0): row for request, row in zip(requests, rows, strict=True)}
    renderer = setup.renderer
    assert isinstance(renderer, TemplateRenderer)
    answer = [*renderer.encode(_ANSWER), renderer.stop_token_ids[0]]

    def script(trajectory_id: str, turn: int, prompt: Sequence[int], params: SamplingParams) -> Sequence[int]:
        row = row_of.get(trajectory_id)  # None if it is one of several players
        if turn or row is None or not row.tools:
            return answer
        row.call = sample_turn(renderer, row.tools)
        return answer if row.call is None else row.call[1]

    engine = engines.create("scripted", script=script, max_model_len=longest, model=str(model))
    trajectories = asyncio.run(_play(LocalWorkers(short, engine), requests))
    for (split, row), trajectory in zip(chosen, trajectories, strict=True):
        _check(trajectory, setup, split, row)
    return _report(setup, trajectories, rows)


def _make_env(setup: RolloutSetup, row: _ReadRow) -> Any:
    """Return the environment of a row. An episode that it does not score gets 0: the script may play it wrongly."""
    env = row.env = setup.make_env(row)
    score = env.score

    async def scored(trajectory: Trajectory) -> float:
        try:
            return await score(trajectory)
        except UnscoredError as error:
            row.unscored = str(error)
            return 0.0

    env.score = scored  # type: ignore[method-assign]
    return env


async def _play(workers: LocalWorkers, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
    try:
        await workers.start()
        groups = await play_all(workers, requests)
        return [group.trajectories[0] for group in groups]
    finally:
        await workers.close()


def _first_of_each_kind(rows: Iterable[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    seen: set[frozenset[str]] = set()
    for split, row in rows:
        if (kind := frozenset(row)) not in seen and len(seen) < _MOST_KINDS:
            seen.add(kind)
            yield split, row


def _check(trajectory: Trajectory, setup: RolloutSetup, split: str, row: Row) -> None:
    """Raise `UserError` if the episode failed."""
    error = trajectory.error or "it has no reward"
    where = f"A scripted episode on row {row['id']!r} of {split}"
    if trajectory.failures.get(FailureKind.JUDGE):
        columns = f"Correct the reward or the rows: this row has the columns {', '.join(sorted(row))}."
        judge = f"reward {setup.config.env.reward}" if setup.reward else f"environment {setup.config.env.factory}"
        raise UserError(f"{where} could not be scored by the {judge}: {with_fix(error, columns)}")
    if trajectory.failures.get(FailureKind.ENV):
        factory = setup.config.env.factory
        raise UserError(f"{where} failed in its environment ({factory}): {with_fix(error, 'Correct the environment.')}")
    if trajectory.error is not None or trajectory.reward is None:
        raise UserError(f"{where} ended as {trajectory.stop_reason}: {with_fix(error, 'Correct its cause.')}")


def _report(setup: RolloutSetup, trajectories: Sequence[Trajectory], rows: Sequence[_ReadRow]) -> Played:
    first, call = trajectories[0], rows[0].call
    turns = f"{first.num_turns} turn{'s' * (first.num_turns != 1)}"
    kinds = f"; {len(rows)} kinds of rows were played" if len(rows) > 1 else ""
    outcome = f"{turns}, ended as {first.stop_reason}, reward {first.reward:g}"
    lines = {"episode": f"row {rows[0]['id']!r}: {outcome}{kinds}"}
    warnings = []
    results = [text_of(message["content"]) for message in first.messages if message["role"] == "tool"]
    if call and results:
        tool = call[0]
        lines["tool"] = f"{tool} answered a sample call: {_short(results[0])}"
        if first.failures.get(FailureKind.TOOL):
            warnings.append(f"The tool {tool} failed at a sample call: {_short(results[0])}")
    elif call and len(call[1]) > setup.config.limits.max_turn_tokens:
        warnings.append(
            f"No tool was called: a sample call of {call[0]} has {len(call[1])} tokens, more than "
            f"limits.max_turn_tokens={setup.config.limits.max_turn_tokens}. Raise that limit."
        )
    elif rows[0].tools:
        warnings.append("No tool was called: the chat template writes no sample call that can be parsed.")
    if rows[0].unscored:
        warnings.append(f"The episode was not scored: {rows[0].unscored}.")
    asked = set.union(*(row.asked for row in rows)) - {"id", "messages"}
    absent = {column for column in asked if not any(column in row for row in setup.train)}
    if asked - absent:
        lines["columns"] = f"reward, tools and environment read {', '.join(sorted(asked - absent))}"
    if absent := absent - _OPTIONAL:
        warnings.append(
            f"The column {' and '.join(map(repr, sorted(absent)))} is read, but no row has it. If that is a "
            "misspelling, correct the reward, the tool or the environment."
        )
    return Played(lines, warnings, has_tools=bool(rows[0].tools))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
