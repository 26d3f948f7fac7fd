"""Worker of skyrl-gym (`agentloop.envs.workers.script`): plays text environments like the package's own generator.

Steps may wait for a search server or for a program, so they run in threads.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass
from typing import Any

import skyrl_gym
from omegaconf import DictConfig, OmegaConf

THREADS = 64


class Worker:
    """Any number of concurrent episodes."""

    def __init__(self) -> None:
        self.envs: dict[str, Any] = {}
        self.threads = ThreadPoolExecutor(THREADS)

    async def start(self, episode: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Create an environment. Return its prompt."""
        return await self.in_thread(self.begin, episode, **arguments)

    async def step(self, episode: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Give a turn of the model to an environment."""
        return await self.in_thread(self.advance, self.envs[episode], text_of(arguments["message"]))

    async def close(self, episode: str) -> None:
        """Close an environment."""
        env = self.envs.pop(episode, None)
        if env is not None:
            await self.in_thread(env.close)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, lambda: function(*arguments, **named))

    def begin(
        self, episode: str, env: str, config: Mapping[str, Any], prompt: list[Any], extras: dict[str, Any]
    ) -> dict[str, Any]:
        """Create an environment. Return its first messages. `env` is its name, or module:name."""
        module, _, name = env.rpartition(":")
        if module:
            importlib.import_module(module)  # registers it
        made = skyrl_gym.make(name, env_config=configured(name, config), extras=extras)
        self.envs[episode] = made
        messages, _ = made.init(prompt)
        return {"messages": messages}

    @staticmethod
    def advance(env: Any, text: str) -> dict[str, Any]:
        """Return the observation, the reward and the end that follow a turn of the model."""
        result = env.step(text)
        if result.get("postprocessed_action") not in (None, text):
            raise ValueError("the environment changed the model's turn, but training needs it as it was sampled")
        reward, done = result["reward"], bool(result["done"])
        answer = {"messages": result["observations"], "reward": None if reward is None else float(reward)}
        if not done:
            return answer
        numbers = {name: each for name, each in env.get_metrics().items() if isinstance(each, (int, float))}
        metrics = {f"reward/skyrl_gym/{name}": float(each) for name, each in numbers.items()}
        return {**answer, "terminated": True, "metrics": metrics}


def configured(env: str, config: Mapping[str, Any]) -> DictConfig:
    """Return the environment's configuration with the changes of `config`. Raises `ValueError` for unknown keys."""
    creator = skyrl_gym.spec(env).entry_point
    if isinstance(creator, str):
        module, _, name = creator.partition(":")
        creator = getattr(importlib.import_module(module), name)
    module_of = inspect.getmodule(creator)
    defaults = [each for each in vars(module_of).values() if isinstance(each, type) and is_dataclass(each)]
    defaults = [each for each in defaults if each.__name__.endswith("EnvConfig")]
    known: DictConfig = OmegaConf.structured(defaults[0]) if defaults else OmegaConf.create({})
    unknown = [name for name in config if name not in known]
    if unknown:
        raise ValueError(f"{env} has no option {', '.join(unknown)} in its configuration: it has {', '.join(known)}")
    known.update(config)
    return known


def text_of(message: Mapping[str, Any]) -> str:
    """Return a turn as it was sampled, because environments also read its thinking."""
    thinking = message.get("reasoning_content")
    content = message.get("content") or ""
    return content if thinking is None else f"<think>{thinking}</think>{content}"
