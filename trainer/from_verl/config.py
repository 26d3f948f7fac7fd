"""`VerlConfig`: one config of verl, and what reading it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentloop.errors import UserError

Settings = dict[str, Any]
"""Dotted key of agentloop -> value; None leaves it out."""


@dataclass(slots=True)
class VerlConfig:
    """What was set, and the defaults of verl below it."""

    values: DictConfig
    said: frozenset[str] = frozenset()
    """Dotted keys that somebody set, in contrast to defaults; of a config that Hydra saved, those of its command."""
    notes: list[str] = field(default_factory=list)
    """What is done otherwise here, or has to be looked at."""
    lacks: list[str] = field(default_factory=list)
    """What changes results in verl and is not in the new config."""
    asked: set[str] = field(default_factory=set)
    """Keys that were looked for."""

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of `keys` that was said, else the first that is there and not null.

        Several keys are several places of one setting in the versions of verl.
        """
        self.asked.update(keys)
        for key in sorted(keys, key=lambda key: not self.was_said(key)):
            try:
                value = OmegaConf.select(self.values, key)
            except OmegaConfBaseException as error:
                raise UserError(f"verl's {key} cannot be resolved: {' '.join(str(error).split())}.") from error
            if value is not None:
                is_node = isinstance(value, DictConfig | ListConfig)
                return OmegaConf.to_container(value, resolve=True) if is_node else value
        return default

    def number(self, *keys: str, default: Any = None) -> Any:
        """As `get`, of a number, which may be in quotes; 'null' is none."""
        value = self.get(*keys, default=default)
        if not isinstance(value, str):
            return value
        if value.strip().lower() in ("none", "null"):
            return default
        try:
            return int(value) if value.strip().lstrip("+-").isdigit() else float(value)
        except ValueError:
            raise UserError(
                f"verl's {keys[0]} is {value!r}, which is no number. Where a script has it from a variable, set that; "
                f"what it would ask a program is empty here: add {keys[0]}=... to this command."
            ) from None

    def was_said(self, key: str) -> bool:
        return any(said == key or said.startswith(f"{key}.") or key.startswith(f"{said}.") for said in self.said)

    def named(self, names: Mapping[str, str], *keys: str, default: str) -> str:
        """What the value is called here; where it has no name here verl's own, which no run is started with."""
        value = str(self.get(*keys, default=default))
        if value not in names:
            self.lack(f"{keys[0]}={value} is not known here; known are {', '.join(names)}. No run starts with it.")
        return names.get(value, value)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def lack(self, text: str) -> None:
        self.lacks.append(text)

    def unsupported(self, key: str, why: str, *, harmless: tuple[Any, ...] = (None, False, 0)) -> None:
        """Says that the value of `key` has no effect here, unless it has none in verl."""
        value = self.get(key)
        if value not in harmless:
            self.lack(f"{key}={value}: {why}")


def positive(value: Any) -> Any:
    """verl writes -1 or 0 for "no"."""
    return value if value is not None and value > 0 else None
