"""JSON Schemas of action spaces, and conversion of JSON values to actions.

    Discrete          integer, or one of `names`          Text              string
    Box               number, or (nested) array           Dict              object
    MultiDiscrete     array of integers                   Tuple             array
    MultiBinary       array of 0 and 1

As for other tools, a number may be a string ("3") and an integer may be 3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from agentloop.errors import UserError, nearest
from agentloop.tools.schema import ArgumentError

_MAX_SHOWN = 80


class ActionArguments:
    """Arguments of the tool `act`: the keys of a Dict space, else one argument, `action`.

    `names` are words for the actions of a Discrete space. Raises `UserError` for spaces that have no JSON form.
    """

    def __init__(self, space: spaces.Space, names: Sequence[str] = ()) -> None:
        self._space = space
        self._names = tuple(names)
        if names and not (isinstance(space, spaces.Discrete) and len(names) == space.n == len(set(names))):
            raise UserError(f"`action_names` must name each action of the space {space} once, got {list(names)}.")
        whole = schema_of(space, self._names)
        is_object = isinstance(space, spaces.Dict)
        self.schema: dict[str, Any] = whole if is_object else _object({"action": whole})

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the action as an element of the space, under "action" or a Dict's keys. Raises `ArgumentError`."""
        if isinstance(self._space, spaces.Dict):
            return dict(read_action(self._space, arguments, ""))
        wrapper = spaces.Dict({"action": spaces.Discrete(1)})
        _check_keys(wrapper, arguments, "")
        return {"action": self.read(arguments["action"])}

    def read(self, value: Any) -> Any:
        """Convert a JSON value to an element of the space. Raises `ArgumentError`."""
        if self._names:
            return self._named(value)
        return read_action(self._space, value, "action")

    def _named(self, value: Any) -> int:
        folded = [name.casefold() for name in self._names]
        if not isinstance(value, str) or value.strip().casefold() not in folded:
            close = nearest(value, self._names) if isinstance(value, str) else ""
            raise ArgumentError(f"action: must be one of {', '.join(self._names)}, got {_shown(value)}.{close}")
        return int(self._space.start) + folded.index(value.strip().casefold())  # type: ignore[attr-defined]


def schema_of(space: spaces.Space, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON Schema of the elements of a space."""
    if isinstance(space, spaces.Discrete):
        if names:
            return {"type": "string", "enum": list(names)}
        return _integer_schema(int(space.start), int(space.start + space.n) - 1)
    if isinstance(space, spaces.MultiBinary):
        return _nested(space.shape, lambda index: _integer_schema(0, 1))
    if isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
        return _nested(space.shape, lambda index: _integer_schema(int(low[index]), int(high[index])))
    if isinstance(space, spaces.Box):
        return _nested(space.shape, lambda index: _number_schema(space, index))
    if isinstance(space, spaces.Text):
        return {"type": "string", "minLength": space.min_length, "maxLength": space.max_length}
    if isinstance(space, spaces.Tuple):
        return _array([schema_of(part) for part in space.spaces])
    if isinstance(space, spaces.Dict):
        return _object({str(key): schema_of(part) for key, part in space.spaces.items()})
    raise UserError(
        f"The action space {space} is not supported. Wrap the environment (gymnasium.ActionWrapper) so that its space "
        "is a Discrete, MultiDiscrete, MultiBinary, Box, Text, Tuple or Dict."
    )


def read_action(space: spaces.Space, value: Any, where: str) -> Any:
    """Convert a JSON value to an element of `space`. Raises `ArgumentError`, which names the value `where`."""
    if isinstance(space, spaces.Discrete):
        return np.int64(_integer(value, int(space.start), int(space.start + space.n) - 1, where))
    if isinstance(space, spaces.MultiBinary):
        return _filled(space, value, where, lambda each, index, at: _integer(each, 0, 1, at))
    if isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
        return _filled(space, value, where, lambda each, index, at: _integer(each, low[index], high[index], at))
    if isinstance(space, spaces.Box):
        return _filled(space, value, where, lambda each, index, at: _box_number(space, each, index, at))
    if isinstance(space, spaces.Text):
        return _text(space, value, where)
    if isinstance(space, spaces.Tuple):
        _check_length(value, len(space.spaces), where)
        return tuple(read_action(part, value[i], f"{where}[{i}]") for i, part in enumerate(space.spaces))
    assert isinstance(space, spaces.Dict)
    _check_keys(space, value, where)
    prefix = f"{where}." if where else ""
    return {key: read_action(part, value[key], f"{prefix}{key}") for key, part in space.spaces.items()}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _array(items: list[dict[str, Any]]) -> dict[str, Any]:
    length = {"minItems": len(items), "maxItems": len(items)}
    if items and all(item == items[0] for item in items):
        return {"type": "array", "items": items[0], **length}
    return {"type": "array", "prefixItems": items, **length}


def _nested(shape: tuple[int, ...], item: Callable[[tuple[int, ...]], dict[str, Any]]) -> dict[str, Any]:
    def level(index: tuple[int, ...]) -> dict[str, Any]:
        if len(index) == len(shape):
            return item(index)
        return _array([level((*index, i)) for i in range(shape[len(index)])])

    return level(())


def _integer_schema(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _number_schema(space: spaces.Box, index: tuple[int, ...]) -> dict[str, Any]:
    is_integer = np.issubdtype(space.dtype, np.integer)  # type: ignore[arg-type]
    schema: dict[str, Any] = {"type": "integer" if is_integer else "number"}
    if space.bounded_below[index]:
        schema["minimum"] = space.low[index].item()
    if space.bounded_above[index]:
        schema["maximum"] = space.high[index].item()
    return schema


def _filled(space: spaces.Space, value: Any, where: str, read: Callable[[Any, tuple[int, ...], str], Any]) -> Any:
    """Return an array of the space's shape whose elements are read from the nested lists `value`."""
    shape = space.shape
    assert shape is not None
    array: Any = np.empty(shape, space.dtype)

    def fill(part: Any, index: tuple[int, ...], at: str) -> None:
        if len(index) == len(shape):
            array[index] = read(part, index, at)
            return
        _check_length(part, shape[len(index)], at)
        for i, each in enumerate(part):
            fill(each, (*index, i), f"{at}[{i}]")

    fill(value, (), where)
    return array


def _integer(value: Any, low: int, high: int, where: str) -> int:
    number = _number(value)
    if number is None or not number.is_integer():
        raise ArgumentError(f"{where}: must be an integer, got {_shown(value)}.")
    if not low <= number <= high:
        raise ArgumentError(f"{where}: must be from {low} to {high}, got {int(number)}.")
    return int(number)


def _box_number(space: spaces.Box, value: Any, index: tuple[int, ...], where: str) -> float:
    number = _number(value)
    if number is None or (np.issubdtype(space.dtype, np.integer) and not number.is_integer()):  # type: ignore[arg-type]
        kind = "an integer" if np.issubdtype(space.dtype, np.integer) else "a number"  # type: ignore[arg-type]
        raise ArgumentError(f"{where}: must be {kind}, got {_shown(value)}.")
    low, high = space.low[index].item(), space.high[index].item()
    if not low <= number <= high:
        raise ArgumentError(f"{where}: must be from {low:.6g} to {high:.6g}, got {number:.6g}.")
    return number


def _number(value: Any) -> float | None:
    """Convert a number or a string to a finite number. Return None if that is not possible."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


def _text(space: spaces.Text, value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ArgumentError(f"{where}: must be a string, got {_shown(value)}.")
    if not space.min_length <= len(value) <= space.max_length:
        raise ArgumentError(
            f"{where}: must have {space.min_length} to {space.max_length} characters, got {len(value)}."
        )
    if bad := sorted(set(value) - set(space.character_set)):
        raise ArgumentError(f"{where}: must not contain {_shown(''.join(bad))}, only {_shown(space.characters)}.")
    return value


def _check_length(value: Any, length: int, where: str) -> None:
    if not isinstance(value, list | tuple) or len(value) != length:
        raise ArgumentError(f"{where}: must be an array of {length} elements, got {_shown(value)}.")


def _check_keys(space: spaces.Dict, value: Any, where: str) -> None:
    prefix = f"{where}." if where else ""
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{where}: must be an object, got {_shown(value)}.")
    problems = [f"{prefix}{key}: unknown.{nearest(str(key), space.spaces)}" for key in value if key not in space.spaces]
    problems += [f"{prefix}{key}: missing." for key in space.spaces if key not in value]
    if problems:
        raise ArgumentError("\n".join(problems))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
