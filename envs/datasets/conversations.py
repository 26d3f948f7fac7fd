"""Read rows with given answers: finished conversations, and pairs of a better and a worse answer.

A conversation is in `messages` (TRL, OpenAI's files for fine-tuning), `prompt` and `completion` (TRL), or
`conversations` (ShareGPT). A pair is in `chosen` and `rejected`, with a `prompt` or with a common beginning. All rows
may have `tools`, `system` and `images`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from agentloop.envs.datasets.rows import as_messages, read_row
from agentloop.errors import UserError, shown

_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
_ROLES = {"developer": "system", "function": "tool"}
_CALLS = ("function_call", "tool_call")
_ANSWERERS = ("assistant", "gpt", *_CALLS)
_PAIR = ("chosen", "rejected")
_COLUMNS = ("messages", "conversations", "prompt", "completion", "chosen", "rejected", "tools", "functions", "system")


def read_conversation(raw: object, where: str, index: int, folder: Path) -> dict[str, Any]:
    """Return a row with `messages`, `tools` (schemas; None if the row has none) and `context`.

    `context` is the number of first messages that are not trained: those of `prompt`. Arguments are as in `read_row`.
    Raises `UserError` for a malformed row.
    """
    row = _mapping(raw, where)
    _check_one_form(row, where)
    context = 0
    if "conversations" in row:
        messages = _messages(row["conversations"], "conversations", where)
    elif "messages" in row:
        messages = _messages(row["messages"], "messages", where)
    elif "prompt" in row and "completion" in row:
        prompt = _messages(as_messages(row["prompt"]), "prompt", where)
        messages = prompt + _messages(as_messages(row["completion"], "assistant"), "completion", where)
        context = len(prompt)
    else:
        raise UserError(
            f"{where}: the row has no finished conversation, only {sorted(map(str, row))}. Add 'messages', "
            "'conversations', or 'prompt' and 'completion'."
        )
    before = len(messages)
    messages = _with_system(messages, row, where)
    found = _checked(row, messages, where, index, folder)
    _check_answered(found["messages"], where)
    return found | {"tools": _tools(row, where), "context": context + len(messages) - before}


def read_pair(raw: object, where: str, index: int, folder: Path) -> dict[str, Any]:
    """Return a row with the conversations `chosen` and `rejected`, `tools` and `context` as in `read_conversation`.

    The messages with which both begin are the context if there is no `prompt`, or if both already contain it, as in
    many published data sets. Raises `UserError` for a malformed row.
    """
    row = _mapping(raw, where)
    if missing := [name for name in _PAIR if name not in row]:
        raise UserError(
            f"{where}: the row has no {' and no '.join(map(repr, missing))}, only {sorted(map(str, row))}. A "
            "preference pair needs both."
        )
    if "prompt" in row and not all(_contains_prompt(row[name], row["prompt"]) for name in _PAIR):
        prompt = _messages(as_messages(row["prompt"]), "prompt", where)
        both = [prompt + _messages(as_messages(row[name], "assistant"), name, where) for name in _PAIR]
        context = len(prompt)
    else:
        both = [_messages(row[name], name, where) for name in _PAIR]
        context = _num_common(*both)
    _check_comparable(both, where)
    added = len(_with_system(both[0], row, where)) - len(both[0])
    found = [_checked(row, _with_system(messages, row, where), where, index, folder) for messages in both]
    for each in found:
        _check_answered(each["messages"], where)
    conversations = {name: each["messages"] for name, each in zip(_PAIR, found, strict=True)}
    own = {key: value for key, value in found[0].items() if key != "messages"}
    return own | conversations | {"tools": _tools(row, where), "context": context + added}


def _num_common(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Return the number of messages with which both conversations begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))


def _check_comparable(both: Sequence[list[Any]], where: str) -> None:
    """Raise `UserError` unless both conversations go on from the same messages to different answers."""
    chosen, rejected = both
    if chosen == rejected:
        raise UserError(f"{where}: 'chosen' and 'rejected' are equal. Remove the row.")
    common = _num_common(chosen, rejected)
    if common == min(len(chosen), len(rejected)):
        whole, part = ("chosen", "rejected") if len(chosen) > common else ("rejected", "chosen")
        raise UserError(
            f"{where}: {whole!r} only continues {part!r}, so there is nothing to compare. Remove the row, or correct "
            f"{part!r}."
        )
    # Results of tools may differ between two attempts at one question.
    if any(messages[common].get("role") not in ("assistant", "tool") for messages in both):
        raise UserError(
            f"{where}: 'chosen' and 'rejected' answer different questions: message {common + 1} is the first that "
            "differs, and it is not an answer. Give both the same messages up to their answers, or remove the row."
        )


def _contains_prompt(answer: object, prompt: object) -> bool:
    """Return whether an answer of a pair is a whole conversation. A prompt in text is then one of its messages."""
    if not isinstance(answer, list | tuple):
        return False
    if isinstance(prompt, list | tuple):
        return list(answer[: len(prompt)]) == list(prompt)
    first = answer[0] if answer else None
    return isinstance(first, Mapping) and first.get("role", first.get("from")) not in _ANSWERERS


def _mapping(raw: object, where: str) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise UserError(f"{where}: a row must be an object with named columns, got {shown(raw)}.")
    return {key: value for key, value in raw.items() if value is not None}


def _check_one_form(row: Mapping[str, Any], where: str) -> None:
    """Raise `UserError` for a row with two conversations. `prompt` without `completion` is none."""
    forms = [name for name in ("messages", "conversations") if name in row]
    forms += ["prompt", "completion"] * ("prompt" in row and "completion" in row)
    if len(forms) > 1 and forms != ["prompt", "completion"]:
        raise UserError(
            f"{where}: the row has several conversations ({', '.join(forms)}), but only one can be trained. Keep "
            "'messages', 'conversations', or 'prompt' and 'completion'."
        )


def _checked(row: Mapping[str, Any], messages: list[Any], where: str, index: int, folder: Path) -> dict[str, Any]:
    """Return the row with checked messages and images, without the columns from which they come."""
    own = {key: value for key, value in row.items() if key not in _COLUMNS}
    return read_row(own | {"messages": messages}, where, index, folder)


def _check_answered(messages: Sequence[Mapping[str, Any]], where: str) -> None:
    roles = [message["role"] for message in messages]
    if "assistant" not in roles[1:] or roles[0] == "assistant":
        raise UserError(
            f"{where}: the conversation has the roles {', '.join(roles)}. It must begin with another message than the "
            "assistant's, and have an answer of the assistant."
        )
    for number, pair in enumerate(pairwise(roles), 1):
        if pair == ("assistant", "assistant"):
            raise UserError(
                f"{where}: messages {number} and {number + 1} are both assistant turns. Put a message between them, or "
                "join them."
            )


def _with_system(messages: list[Any], row: Mapping[str, Any], where: str) -> list[Any]:
    """Return the messages with that of the column `system` first. Raises `UserError` if it is not text or differs."""
    system = row.get("system", "")
    if not isinstance(system, str):
        raise UserError(f"{where}: 'system' must be a string, got {shown(system)}.")
    first = messages[0] if messages[0].get("role") == "system" else None
    if not system or (first is not None and first.get("content") == system):
        return messages
    if first is not None:
        raise UserError(
            f"{where}: the messages begin with another system message than the column 'system' has, but the model sees "
            "only one. Remove one of them."
        )
    return [{"role": "system", "content": system}, *messages]


def _messages(value: object, column: str, where: str) -> list[Any]:
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"{where}: {column!r} must be a list of messages, got {shown(value)}.")
    return [_message(each, f"{where}: message {number} of {column!r}") for number, each in enumerate(value, 1)]


def _message(item: object, where: str) -> Any:
    if not isinstance(item, Mapping):
        raise UserError(f"{where} must be an object with 'role' and 'content', got {shown(item)}.")
    message = {key: value for key, value in item.items() if value is not None}
    if "from" in message and "role" not in message:
        message = _of_sharegpt(message, where)
    if not isinstance(message.get("role"), str):
        raise UserError(f"{where} must have a string as 'role', got {shown(message.get('role'))}.")
    message["role"] = _ROLES.get(message["role"], message["role"])
    if message["role"] == "assistant" and (weight := message.get("weight", 1)) not in (0, 1):
        raise UserError(
            f"{where} has the 'weight' {shown(weight)}, but a turn is either trained or context. Set it to 1 or 0."
        )
    if "function_call" in message:  # OpenAI's form before tool_calls
        message["tool_calls"] = [{"function": message.pop("function_call")}]
    if message.get("tool_calls"):
        calls = _data(message["tool_calls"], f"{where}: 'tool_calls'")
        if not isinstance(calls, list | tuple):
            raise UserError(f"{where}: 'tool_calls' must be a list of calls, or one as JSON, got {shown(calls)}.")
        message["tool_calls"] = [_call(each, f"{where}: call {number}", number) for number, each in enumerate(calls, 1)]
    else:
        message.pop("tool_calls", None)
    if isinstance(message.get("content"), list):
        message["content"] = [_part(part) for part in message["content"]]
    return message


def _of_sharegpt(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    said, value = str(message["from"]), message.get("value", "")
    rest = {key: item for key, item in message.items() if key not in ("from", "value")}
    role = _SHAREGPT_ROLES.get(said, said)
    if said not in _CALLS:
        return {**rest, "role": role, "content": value}
    calls = _json(value, where)
    listed = [{"function": each} for each in (calls if isinstance(calls, list) else [calls])]
    return {**rest, "role": role, "content": "", "tool_calls": json.dumps(listed) if isinstance(value, str) else listed}


def _call(item: object, where: str, number: int) -> dict[str, Any]:
    """Return a call with its arguments as an object, because templates format arguments themselves."""
    call = item if isinstance(item, Mapping) else {}
    function = call.get("function", call)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError(f"{where} must have a 'function' with 'name' and 'arguments', got {shown(item)}.")
    arguments = function.get("arguments")
    arguments = {} if arguments in (None, "") else _json(arguments, where)
    if not isinstance(arguments, Mapping):
        raise UserError(f"{where}: the arguments of {function['name']} must be a JSON object, got {shown(arguments)}.")
    body = {"name": function["name"], "arguments": arguments}
    return {"id": call.get("id") or f"call_{number - 1}", "type": "function", "function": body}


def _part(part: Any) -> Any:
    """Return a part of a content. The URL of OpenAI's `image_url` becomes the image."""
    if isinstance(part, Mapping) and part.get("type") == "image_url":
        url = part.get("image_url")
        return {"type": "image", "image": url.get("url") if isinstance(url, Mapping) else url}
    return part


def _tools(row: Mapping[str, Any], where: str) -> list[Any] | None:
    value = row.get("tools", row.get("functions"))
    if value is None:
        return None
    listed = _data(value, f"{where}: 'tools'")
    if not isinstance(listed, list | tuple):
        raise UserError(f"{where}: 'tools' must be a list of tools, or one as JSON, got {shown(value)}.")
    return [_tool(each, f"{where}: tool {number}") for number, each in enumerate(listed, 1)]


def _tool(item: object, where: str) -> dict[str, Any]:
    tool = _json(item, where)
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError(f"{where} must have a 'function' with 'name' and 'parameters', got {shown(item)}.")
    return {"type": "function", "function": function}


def _data(value: Any, where: str) -> Any:
    """Return the data of JSON text, with the null keys that its author wrote, or other data without null keys."""
    return _json(value, where) if isinstance(value, str) else _without_null(value)


def _json(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}.") from error


def _without_null(value: Any) -> Any:
    """Return plain data without null keys, because Parquet gives each object the keys of all others."""
    if isinstance(value, Mapping):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list | tuple) else value
