"""From a config of verl to one of agentloop: the settings that both have, and notes on those that differ.

`sources` reads what verl is started with, the modules beside it take over one part of the config each, and `unread`
finds what none of them asked for. Written against verl 0.9.1; keys that older versions have elsewhere are looked for
there, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.trainer.from_verl.algorithm import algorithm
from agentloop.trainer.from_verl.asynchronous import asynchronous
from agentloop.trainer.from_verl.config import Settings, VerlConfig
from agentloop.trainer.from_verl.data import data
from agentloop.trainer.from_verl.environment import environment
from agentloop.trainer.from_verl.hardware import hardware
from agentloop.trainer.from_verl.learner import learner
from agentloop.trainer.from_verl.rollout import rollout
from agentloop.trainer.from_verl.run import run
from agentloop.trainer.from_verl.sources import read
from agentloop.trainer.from_verl.unread import unread

__all__ = ["Converted", "convert"]

_PARTS: tuple[Callable[[VerlConfig], Settings], ...] = (
    data, environment, rollout, algorithm, learner, asynchronous, hardware, run,
)  # fmt: skip

_PATHS = ("data.train", "data.eval", "env.tools", "env.reward_options", "rendering.chat_template")


@dataclass(slots=True)
class Converted:
    """What became of a config."""

    config: dict[str, Any]
    """As in a YAML file of agentloop."""
    lacks: list[str]
    """What changes results in verl and is not in it, a sentence or two each."""
    notes: list[str]
    """What is done otherwise here, or has to be looked at."""


def convert(*words: str | Path) -> Converted:
    """Of a config.yaml that Hydra saved, a launch script with its arguments, or the words of a command.

    Raises `UserError` where it is none of these, or starts nothing that is trained with rewards.
    """
    if not words:
        raise UserError("Name a config.yaml of verl or a launch script, or write -- and the overrides of a run.")
    verl = read([str(word) for word in words])
    settings: Settings = {}
    for part in _PARTS:
        settings |= part(verl)
    settings = {key: value for key, value in settings.items() if value is not None}
    if relative := [key for key in _PATHS if _is_relative(settings.get(key))]:
        verl.note(f"Relative paths start at the folder of this file: check {', '.join(relative)}.")
    lacks = verl.lacks + [f"{key} was set, and nothing here was made of it." for key in unread(verl)]
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
