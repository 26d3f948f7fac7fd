"""Convert a config of verl to a config of agentloop: common settings, and notes on differences.

`sources` reads the config or the launch script, the other modules convert one part each, and `unread` finds settings
that no part has read. The converter targets verl 0.9.1 and also reads keys of older versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.trainer.from_verl.algorithm import algorithm
from agentloop.trainer.from_verl.asynchronous import asynchronous
from agentloop.trainer.from_verl.config import Settings, VerlConfig, escaped, interpolated_from, visible
from agentloop.trainer.from_verl.data import data
from agentloop.trainer.from_verl.environment import environment
from agentloop.trainer.from_verl.hardware import hardware
from agentloop.trainer.from_verl.learner import learner
from agentloop.trainer.from_verl.rollout import rollout
from agentloop.trainer.from_verl.run import run
from agentloop.trainer.from_verl.sources import read
from agentloop.trainer.from_verl.unread import unread

__all__ = ["Converted", "convert"]

PARTS: tuple[Callable[[VerlConfig], Settings], ...] = (
    data, environment, rollout, algorithm, learner, asynchronous, hardware, run,
)  # fmt: skip
"""Converters of one part of the configuration each."""

_PATHS = ("data.train", "data.eval", "env.tools", "env.reward_options", "rendering.chat_template")


@dataclass(slots=True)
class Converted:
    """A converted configuration."""

    config: dict[str, Any]
    """Configuration of agentloop, as in a YAML file."""
    lacks: list[str]
    """Settings that change results in verl and have no counterpart in agentloop, in one or two sentences each."""
    notes: list[str]
    """Differences in meaning that a person should check."""


def convert(*words: str | Path, variables: Mapping[str, str] | None = None) -> Converted:
    """Convert a config.yaml that Hydra saved, a launch script with its arguments, or the words of a command.

    A script sees the environment variables `variables`, and HOME, USER and PWD of this process. Raises `UserError` for
    other sources, and for a trainer without rewards.
    """
    if not words:
        raise UserError(
            "No source given. Pass a config.yaml of verl, a launch script, or -- and the overrides of a run."
        )
    known = visible(variables or {})
    with interpolated_from(known):
        verl = read([str(word) for word in words], known)
        settings: Settings = {}
        for part in PARTS:
            settings |= part(verl)
        not_read = list(unread(verl))
    settings = {key: escaped(value) for key, value in settings.items() if value is not None}
    if relative := [key for key in _PATHS if _is_relative(settings.get(key))]:
        verl.note(f"Relative paths are relative to the folder of this file: check {', '.join(relative)}.")
    lacks = verl.lacks + [f"{key} was set, but has no counterpart here." for key in not_read]
    return Converted(_nested(settings), list(dict.fromkeys(lacks)), list(dict.fromkeys(verl.notes)))


def _is_relative(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_relative(each) for each in value)
    if isinstance(value, dict):
        file = value.get("options", {}).get("config") or value.get("function", "")
        return not (":" in file and ".py:" not in file) and _is_relative(file)
    return value is not None and not str(value).startswith(("/", "~"))


def _nested(settings: Settings) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return config
