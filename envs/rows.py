"""Dataset rows: what a raw row must have, and the one shape that environments, rewards and tools see.

A row says its prompt as `messages` (a list of chat messages) or `prompt` (such a list, or a string that becomes one
user message). All other columns are kept for rewards and tools. Rows of verl's datasets are read as they are:
`reward_model.ground_truth` also becomes `answer`, `extra_info.index` the id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from agentloop.errors import UserError, nearest
from agentloop.messages import Message, Role

_ROLES = get_args(Role)


def read_row(raw: object, where: str, index: int) -> dict[str, Any]:
    """The row as a dict with `id` (str) and `messages`, and all its own columns.

    `where` ("data.jsonl, line 7") is for the error. Raises `UserError` for what is no row.
    """
    if not isinstance(raw, Mapping):
        raise UserError(f"{where}: a row must be an object with named columns, got {_shown(raw)}.")
    row = {key: value for key, value in raw.items() if not _is_missing(value)}
    row["messages"] = _messages(row, where)
    if "answer" not in row and (answer := _nested(row, "reward_model", "ground_truth")) is not None:
        row["answer"] = answer
    own_id = row.get("id", _nested(row, "extra_info", "index"))
    row["id"] = str(index if own_id is None else own_id)
    return row


def _messages(row: Mapping[str, Any], where: str) -> list[Message]:
    column = "messages" if "messages" in row else "prompt"
    if column not in row:
        raise UserError(
            f"{where}: the row has neither 'messages' nor 'prompt', only {sorted(row)}."
            f"{_nearest_column(row)} Give it a list of chat messages or a string."
        )
    value = row[column]
    if isinstance(value, str):
        if not value.strip():
            raise UserError(f"{where}: {column!r} is empty. Fill it in or take the row out.")
        return [{"role": "user", "content": value}]
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"{where}: {column!r} must be a string or a list of messages, got {_shown(value)}.")
    return [_message(item, f"{where}: message {position} of {column!r}") for position, item in enumerate(value, 1)]


def _message(item: object, where: str) -> Message:
    if not isinstance(item, Mapping) or "role" not in item:
        raise UserError(f"{where} must be an object with 'role' and 'content', got {_shown(item)}.")
    role, content = item["role"], item.get("content")
    if role not in _ROLES:
        known = ", ".join(_ROLES)
        raise UserError(f"{where} has the role {role!r}.{nearest(str(role), _ROLES)} Known: {known}.")
    if content is None and item.get("tool_calls"):
        content = ""
    if not isinstance(content, str | list):
        raise UserError(f"{where} must have a string or a list of parts as 'content', got {_shown(content)}.")
    # Parquet gives every message all the columns of any message: those that are not set must not reach the template.
    message = {key: value for key, value in item.items() if value is not None}
    return {**message, "content": content}  # type: ignore[typeddict-item]


def _nested(row: Mapping[str, Any], column: str, key: str) -> Any:
    value = row.get(column)
    return value.get(key) if isinstance(value, Mapping) else None


def _is_missing(value: object) -> bool:
    """Null in a table: None, or the NaN that table libraries make of it."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _nearest_column(row: Mapping[str, Any]) -> str:
    for wanted in ("messages", "prompt"):
        if close := nearest(wanted, map(str, row)):
            return close.replace("Did you mean", f"Should {wanted!r} be").replace("?", "?")
    return ""


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
