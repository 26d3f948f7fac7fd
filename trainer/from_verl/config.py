"""`VerlConfig`: a config of verl with the findings of its conversion, and the environment variables it may use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from agentloop.errors import UserError

Settings = dict[str, Any]
"""Dotted key of agentloop -> value; None omits the key."""


@dataclass(slots=True)
class VerlConfig:
    """A config of verl: the user's settings merged over the defaults."""

    values: DictConfig
    set_keys: frozenset[str] = frozenset()
    """Dotted keys that the user set; for a config that Hydra saved, the keys of its command."""
    notes: list[str] = field(default_factory=list)
    """Differences in meaning that a person should check."""
    lacks: list[str] = field(default_factory=list)
    """Settings that change results in verl and have no counterpart in agentloop."""
    read_keys: set[str] = field(default_factory=set)
    """Keys that the converter has read."""

    def get(self, *keys: str, default: Any = None) -> Any:
        """Return the value of the first of `keys` that the user set, or else of the first that is not null.

        Different versions of verl have the same setting under different keys.
        """
        self.read_keys.update(keys)
        for key in sorted(keys, key=lambda key: not self.is_set(key)):
            try:
                value = OmegaConf.select(self.values, key)
            except OmegaConfBaseException as error:
                # OmegaConf's lines after the first name its own types.
                reason = str(error).partition("\n")[0].rpartition("while resolving interpolation: ")[2].strip("'\"")
                raise UserError(
                    f"Cannot resolve verl's {key}: {reason}. Set what it refers to, or add {key}=VALUE to this command."
                ) from error
            if value is not None:
                is_node = isinstance(value, DictConfig | ListConfig)
                return OmegaConf.to_container(value, resolve=True) if is_node else value
        return self._in_place_of_null(keys, default)

    def number(self, *keys: str, default: Any = None) -> Any:
        """Return the value of `get` as a number, which may be quoted; 'null' and 'none' give the default."""
        value = self.get(*keys, default=default)
        if value is None or isinstance(value, int | float):
            return value
        text = str(value).strip()
        if text.lower() in ("none", "null"):
            return self._in_place_of_null(keys, default)
        try:
            return int(text) if text.lstrip("+-").isdigit() else float(text)
        except ValueError:
            raise UserError(
                f"verl's {keys[0]} is {value!r}, which is not a number. If a script takes it from a variable, set the "
                f"variable. If it takes it from a program, which is not run here, add {keys[0]}=... to this command."
            ) from None

    def _in_place_of_null(self, keys: tuple[str, ...], default: Any) -> Any:
        for key in keys:
            if default and key in self.set_keys:
                self.note(f"{key} has no value, and counts as {default} here.")
        return default

    def is_set(self, key: str) -> bool:
        """Return whether the user set `key`, a key below it, or one above it."""
        return any(each == key or each.startswith(f"{key}.") or key.startswith(f"{each}.") for each in self.set_keys)

    def named(self, names: Mapping[str, str], *keys: str, default: str) -> str:
        """Return agentloop's name for a value, or verl's name, which is then invalid, and record that."""
        value = str(self.get(*keys, default=default))
        if value not in names:
            self.lack(f"{keys[0]}={value} is not known here (known: {', '.join(names)}). No run starts with it.")
        return names.get(value, value)

    def note(self, text: str) -> None:
        """Record a difference that a person should check."""
        self.notes.append(text)

    def lack(self, text: str) -> None:
        """Record a setting that has no counterpart in agentloop."""
        self.lacks.append(text)

    def unsupported(self, key: str, why: str, *, harmless: tuple[Any, ...] = (None, False, 0)) -> None:
        """Record `key` as a setting without counterpart, unless its value has no effect in verl."""
        value = self.get(key)
        if value not in harmless:
            self.lack(f"{key}={value}: {why}")


def positive(value: Any) -> Any:
    """Return a positive number; None for -1 and 0, which mean "no" in verl."""
    return value if value is not None and value > 0 else None


def visible(named: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that a conversion may read: the named ones, HOME, USER and PWD.

    This keeps secrets out of configs.
    """
    user = {"USER": os.environ["USER"]} if "USER" in os.environ else {}
    return {"HOME": os.path.expanduser("~"), "PWD": os.getcwd(), **user, **named}


@contextmanager
def interpolated_from(variables: Mapping[str, str]) -> Iterator[None]:
    """Resolve `${oc.env:NAME}` from `variables` only."""

    def environment(name: str, *default: Any) -> Any:
        if name in variables:
            return variables[name]
        if default:
            return default[0]
        raise KeyError(f"the variable {name} is not passed: add --env {name}")

    OmegaConf.register_resolver("oc.env", environment, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_resolver("oc.env", oc.env, replace=True)


def escaped(value: Any) -> Any:
    r"""Return a setting with `${` escaped (`\${`), because text of a script must not be resolved in a new config."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: f"{found[1] * 2}\\${{", value)
    if isinstance(value, dict):
        return {key: escaped(each) for key, each in value.items()}
    return [escaped(each) for each in value] if isinstance(value, list) else value
