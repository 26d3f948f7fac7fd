"""Environments that fail, and functions of a user; tests name them by this file."""

import threading
from typing import ClassVar

import gymnasium
from gymnasium import spaces


class Broken(gymnasium.Env):
    observation_space = spaces.Text(99)
    action_space = spaces.Text(99)
    release = threading.Event()
    closed: ClassVar[list[str]] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"options {options}", {}

    def step(self, action):
        if action == "raise":
            raise RuntimeError("boom")
        if action == "next":
            next(iter([]))
        if action == "hang":
            self.release.wait(20)
        return action, float("nan") if action == "nan" else 0.5, False, False, {}

    def close(self):
        self.closed.append("closed")


class NoActions(Broken):
    action_space = spaces.Sequence(spaces.Discrete(2))


class Unmade(Broken):
    def __init__(self):
        raise OSError("no display")


def shout(observation, info, env):
    return f"{observation.upper()}!"


def first_word(text):
    if not text.strip():
        raise ValueError("say something")
    return text.split()[0]
