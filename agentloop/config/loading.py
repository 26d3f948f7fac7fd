"""Load a YAML file and `key=value` overrides as a validated config.

Values may use omegaconf's interpolation (`${oc.env:HOME}`, `${run.seed}`). Strings in fields marked with `HAS_PATHS`
(`ConfigPath`, `ConfigOptions`) may be paths. Relative paths in the YAML file are relative to its folder; those on the
command line, to the current folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from agentloop.config.errors import user_error
from agentloop.errors import UserError
from agentloop.registry.options import HAS_PATHS, Config, ConfigOptions, ConfigPath

C = TypeVar("C", bound=Config)

__all__ = ["HAS_PATHS", "ConfigOptions", "ConfigPath", "anchored", "load_config", "validated"]

_PATH_STARTS = ("./", "../", "~/")
_FILE_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".parquet", ".json", ".csv", ".yaml", ".txt")


def load_config(
    schema: type[C], source: Path | Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = ()
) -> C:
    """Return `source`, a YAML file or plain values, with `overrides` as a validated config.

    Overrides are `key=value` strings with dotted keys and YAML values, or a mapping of dotted keys to plain values.
    Each replaces the whole value of its key, even a mapping or list. An override that selects another engine,
    environment, reward, loss or dataset drops the options in `source`, which belong to the previous one. Raises
    `UserError`, in one paragraph, for an unreadable file, unknown keys (with the nearest known key) and values of a
    wrong type or range.
    """
    name, folder = (str(source), source.parent) if isinstance(source, Path) else ("of this call", Path.cwd())
    data = _read_yaml(source) if isinstance(source, Path) else source
    config = OmegaConf.create(_anchor_all(schema, data, folder))
    pairs = list(overrides.items() if isinstance(overrides, Mapping) else map(_parse_override, overrides))
    try:
        for key, value in pairs:
            _drop_options_of_another(schema, config, key, value)
        for key, value in pairs:
            _set(config, key, _anchor_override(schema, key, value))
        resolved = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"The config {name} cannot be resolved: {_one_line(error)}.") from error
    return validated(schema, _anchor_all(schema, resolved, folder), name)


def validated(schema: type[C], data: Any, source: str) -> C:
    """Return `data` as a config. Raises `UserError`, which names `source`."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise user_error(error, schema, source) from error


def anchored(value: str, folder: Path) -> str:
    """Return a path as an absolute path, and a name unchanged.

    A path starts with './', '../' or '~/', ends with the suffix of a data file, or has the form 'file.py:name'. So a
    model 'org/name' and a tool 'search' are names, and a local model folder is written './name'.
    """
    path, separator, attribute = value.rpartition(":") if ".py:" in value else (value, "", "")
    if "${" in value or "://" in value or not (separator or path.startswith(_PATH_STARTS) or _is_file_name(path)):
        return value
    # Not resolve(): keep a symbolic link as the user wrote it, because its target may change.
    return os.path.abspath(folder / Path(path).expanduser()) + separator + attribute


def _is_file_name(value: str) -> bool:
    return value.endswith(_FILE_SUFFIXES)


def _read_yaml(source: Path) -> dict[str, Any]:
    try:
        data = OmegaConf.to_container(OmegaConf.load(source))
    except FileNotFoundError as error:
        raise UserError(f"There is no config file {source}: correct the path.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"The config file {source} cannot be read: {_one_line(error)}.") from error
    if not isinstance(data, dict):
        raise UserError(f"The config file {source} must have keys at its top level, got a {type(data).__name__}.")
    return {str(key): value for key, value in data.items()}


def _parse_override(override: str) -> tuple[str, Any]:
    """Return key and value."""
    key, separator, value = override.partition("=")
    key = re.sub(r"\[(-?\d+)\]", r".\1", key.strip())  # tools[0].name, as omegaconf also writes it
    if not separator or not key:
        raise UserError(f"Invalid override {override!r}: expected key=value, for example run.steps=100.")
    try:
        parsed: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={value}"]))
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise UserError(f"The override {override!r} cannot be read: {_one_line(error)}.") from error
    return key, parsed["value"]


def _set(config: Any, key: str, value: Any) -> None:
    try:
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    except OmegaConfBaseException:
        raise
    except ValueError as error:  # of int(): omegaconf reads the part after a list as the index of an item
        raise UserError(
            f"{key!r} goes through a list without the number of an item. Write it as in env.tools.0.name, or set the "
            "whole list."
        ) from error


def _drop_options_of_another(schema: type[Config], config: Any, key: str, value: Any) -> None:
    """Remove the options that belong to a replaced name: `options` beside `name` and `factory`, or `X_options`."""
    parent, _, last = key.rpartition(".")
    options = "options" if last in ("name", "factory") else f"{last}_options"
    beside = OmegaConf.select(config, parent) if parent else config
    if not OmegaConf.is_dict(beside) or options not in beside:
        return
    named = beside[last] if last in beside else _default_of(schema, key)
    if named != value:
        del beside[options]


def _default_of(schema: type[BaseModel], key: str) -> Any:
    """Return the default value of a dotted key; None if it has none."""
    first, _, rest = key.partition(".")
    field = schema.model_fields.get(first)
    if field is None or not rest:
        return None if field is None else field.default
    inside = field.annotation
    return _default_of(inside, rest) if isinstance(inside, type) and issubclass(inside, BaseModel) else None


def _anchor_override(schema: type[Config], key: str, value: Any) -> Any:
    """Return the value with its paths anchored at the current folder."""
    parts = key.split(".")
    for part in reversed(parts):
        value = {part: value}
    value = _anchor_all(schema, value, Path.cwd())
    for part in parts:
        value = value[part]
    return value


def _anchor_all(annotation: Any, value: Any, folder: Path) -> Any:
    """Return `value` with every path anchored; the annotation tells which strings may be paths."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated and HAS_PATHS in arguments[1:]:
        return _anchor_strings(value, folder)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, Mapping):
        return {key: _anchor_field(annotation, key, item, folder) for key, item in value.items()}
    in_container = get_origin(annotation) in (list, tuple, dict)
    for argument in arguments:
        if not in_container:  # Annotated, or a union
            value = _anchor_all(argument, value, folder)
        elif isinstance(value, list):
            value = [_anchor_all(argument, item, folder) for item in value]
        elif isinstance(value, Mapping):  # a dict, or an override of one item of a list
            value = {key: _anchor_all(argument, item, folder) for key, item in value.items()}
    return value


def _anchor_strings(value: Any, folder: Path) -> Any:
    if isinstance(value, Mapping):
        return {key: _anchor_strings(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_anchor_strings(item, folder) for item in value]
    return anchored(value, folder) if isinstance(value, str) else value


def _anchor_field(schema: type[BaseModel], key: Any, value: Any, folder: Path) -> Any:
    field = schema.model_fields.get(key)
    if field is None:
        return value
    # Pydantic splits the outermost Annotated into annotation and metadata.
    annotation = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return _anchor_all(annotation, value, folder)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
