"""Configs in Python: a recipe, a file, plain values or a `RunConfig`, with overrides."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from agentloop.api.recipe import Method, find_config, own_folder
from agentloop.config.fine_tuning import FineTuningConfig
from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError, shown
from agentloop.registry.named_objects import name_of
from agentloop.registry.options import Config

C = TypeVar("C", RunConfig, FineTuningConfig)

ConfigSource = RunConfig | Mapping[str, Any] | str | PathLike[str]
"""A `RunConfig`, a mapping of its keys, or, as on the command line, a YAML file, a folder or the name of a recipe."""


def config_of(source: ConfigSource, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the config of a run. Raises `UserError` in one paragraph if it is invalid.

    An override of a section (`run={"steps": 3}`) sets only the keys in it; an override of a key (`"run.steps": 3`)
    replaces its whole value. Classes and functions may be passed instead of their names.
    """
    return _loaded(RunConfig, source, overrides)


FineTuningSource = FineTuningConfig | Mapping[str, Any] | str | PathLike[str]
"""A `FineTuningConfig`, a mapping of its keys, or a YAML file, a folder with a sft.yaml or dpo.yaml, or a recipe."""


def fine_tuning_config_of(source: FineTuningSource, overrides: Mapping[str, Any], method: Method) -> FineTuningConfig:
    """Return the config of a run on given answers, as `config_of` does."""
    loss = {} if method == "sft" else {"learner.loss": method}
    return _loaded(FineTuningConfig, source, loss | dict(overrides), f"{method}.yaml")


def _loaded(
    schema: type[C], source: C | Mapping[str, Any] | str | PathLike[str], overrides: Mapping[str, Any], *name: str
) -> C:
    base: Path | Mapping[str, Any]
    own: dict[str, Any] = {}
    if isinstance(source, RunConfig | FineTuningConfig):
        base = source.model_dump(mode="json", exclude_unset=True)
    elif isinstance(source, Mapping):
        base = _plain("", source)
    elif not isinstance(source, str | PathLike):
        raise UserError(
            f"The config is {shown(source)}. Pass a YAML file, a folder, the name of a recipe, a {schema.__name__}, or "
            "a mapping of its keys."
        )
    else:
        file = find_config(fspath(source), *name)
        base, folder = file.resolve(), own_folder(file)
        own = {} if folder is None else {"run.folder": str(folder)}
    return load_config(schema, base, own | dict(_keys(schema, overrides)))


def _keys(schema: type[Config], overrides: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the plain value of each override."""
    for name, given in overrides.items():
        key, value = f"{prefix}{name}", _plain(f"{prefix}{name}", given)
        section = _section(schema, name)
        if section is not None and isinstance(value, Mapping):
            yield from _keys(section, value, f"{key}.")
        else:
            yield key, value


def _section(schema: type[Config], name: str) -> type[Config] | None:
    """Return the schema of the section with a dotted name; None for a key."""
    found: Any = schema
    for part in name.split("."):
        field = found.model_fields.get(part)
        found = field.annotation if field is not None else None
        if not (isinstance(found, type) and issubclass(found, Config)):
            return None
    return found  # type: ignore[no-any-return]


def _plain(key: str, value: Any) -> Any:
    """Return plain data: classes and functions as names, config objects as the keys that were set."""
    if isinstance(value, Config):
        return _plain(key, {name: getattr(value, name) for name in value.model_fields_set})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(key, dataclasses.asdict(value))
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return {name: _plain(f"{key}.{name}".strip("."), each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, each) for each in value]
    named = name_of(value)
    if named is not None and not isinstance(named, str | int | float):
        raise UserError(
            f"{key} is of type {type(value).__name__}, which a config cannot contain. Write a function that returns "
            f"it, and set {key} to the function."
        )
    return named
