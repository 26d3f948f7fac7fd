"""Columns of verl's datasets that choose the tools and the agent loop of a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def tool_selection(row: Mapping[str, Any]) -> list[str]:
    """Return the names in `extra_info.tool_selection`; empty if the row has all tools, as in verl."""
    if "extra_info" not in row:  # the dry run would warn of a column that is read and missing
        return []
    extra_info = row["extra_info"]
    names = extra_info.get("tool_selection") if isinstance(extra_info, Mapping) else None
    return list(names) if isinstance(names, list | tuple) else []


def unused_agents(rows: Sequence[Mapping[str, Any]], tools: Collection[str]) -> list[str]:
    """Return a sentence for each `agent_name` of verl's rows that would play otherwise in verl."""
    counts = Counter(str(row["agent_name"]) for row in rows if "agent_name" in row and "reward_model" in row)
    problems = []
    for name, count in sorted(counts.items()):
        if name == "single_turn_agent" and tools:
            problems.append(
                f"The column agent_name is {name!r} in {count} rows, but has no effect: they have the tools of "
                f"env.tools ({', '.join(tools)}), too. Remove these rows, or env.tools."
            )
        elif name not in ("single_turn_agent", "tool_agent"):
            problems.append(
                f"The column agent_name is {name!r} in {count} rows, but has no effect: agent loops of verl do not run "
                "here. Write the loop as an environment (env.factory), or run it through the gateway."
            )
    return problems
