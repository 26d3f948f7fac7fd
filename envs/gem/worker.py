"""Worker of GEM (`agentloop.envs.workers.script`): plays its environments without their wrappers.

The wrappers repeat the history in each observation. Without them the model reads only what is new.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gem
from gem.envs.registration import ENV_REGISTRY

RandomNumbers = runpy.run_path(str(Path(__file__).parents[1] / "workers" / "random_numbers.py"))["RandomNumbers"]


class Worker:
    """Any number of concurrent environments, each with its own random state."""

    def __init__(self) -> None:
        self.games: dict[str, Game] = {}

    def rows(self, envs: Mapping[str, Mapping[str, Any]], size: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield `size` rows that take the environments in turn. Raises for environments that cannot be created."""
        for name, options in envs.items():
            Game(name, options, 0)
        names = list(envs)
        for number in range(seed, seed + size):
            name = names[(number - seed) % len(names)]
            yield {"id": f"{name}-{number}", "env": name, "seed": number, "options": dict(envs[name])}

    def start(self, episode: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode. Return its first message."""
        game = Game(arguments["env"], arguments.get("options") or {}, arguments["seed"])
        self.games[episode] = game
        return game.reset(arguments["seed"])

    def step(self, episode: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Give a turn of the model to an environment."""
        return self.games[episode].step(text_of(arguments["message"]))

    def close(self, episode: str) -> None:
        """Forget an environment."""
        self.games.pop(episode, None)


class Game:
    """An environment of the package. It draws from the random numbers of the process, so each has its own state."""

    def __init__(self, name: str, options: Mapping[str, Any], seed: int) -> None:
        if name not in ENV_REGISTRY:
            near = difflib.get_close_matches(name, ENV_REGISTRY, n=1)
            raise ValueError(f"GEM has no environment {name}" + (f": did you mean {near[0]}?" if near else ""))
        check_options(name, options)
        chosen = dict(options)
        module, _, kind = str(ENV_REGISTRY[name].entry_point).partition(":")
        open_data_sets_once(module)
        if kind == "MathEnv":
            chosen.setdefault("use_mp", False)  # a process for each episode; a signal bounds the time, too
        self.numbers = RandomNumbers(seed)
        with self.numbers.used():
            self.env = gem.make(name, **chosen)

    def reset(self, seed: int) -> dict[str, Any]:
        """Begin the episode."""
        with self.numbers.used():
            text, info = self.env.reset(seed=seed)
        return {"messages": shown(text, info)}

    def step(self, text: str) -> dict[str, Any]:
        """Return the observation, the reward and the end that follow a turn of the model."""
        with self.numbers.used():
            observation, reward, terminated, truncated, info = self.env.step(text)
        answer = {
            "reward": None if reward is None else float(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }
        return answer if terminated or truncated else {**answer, "messages": shown(observation, info)}


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` for options that an environment does not have: most take any, and ignore them."""
    module, _, kind = str(ENV_REGISTRY[name].entry_point).partition(":")
    made = getattr(importlib.import_module(module), kind)
    parameters = [each for parent in made.__mro__ for each in inspect.signature(parent.__init__).parameters.values()]
    named = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    known = sorted(named - {"self"})
    for unknown in sorted(set(options) - set(known)):
        near = difflib.get_close_matches(unknown, known, n=1)
        meant = f": did you mean {near[0]}?" if near else f", only {', '.join(known)}"
        raise ValueError(f"{name} has no option {unknown}{meant}")


@functools.cache
def open_data_sets_once(module: str) -> None:
    """Let the environments of a module, one for each episode, share the datasets that they open."""
    imported: Any = importlib.import_module(module)
    if hasattr(imported, "load_dataset"):
        imported.load_dataset = functools.lru_cache(maxsize=32)(imported.load_dataset)


def shown(text: str, info: Mapping[str, Any]) -> str:
    """Return an observation with the text that the environment adds before and after it."""
    after = info.get("suffix", "")
    between = "\n" if text and after and not text.endswith("\n") else ""
    return f"{info.get('prefix', '')}{text}{between}{after}"


def text_of(message: Mapping[str, Any]) -> str:
    """Return a turn as it was sampled."""
    thinking = message.get("reasoning_content")
    content = message.get("content") or ""
    return content if thinking is None else f"<think>{thinking}</think>{content}"
