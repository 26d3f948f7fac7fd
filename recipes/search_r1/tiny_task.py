"""Tiny run of Search-R1: facts about numbered planets, which are only in a generated corpus.

    agentloop sft recipes/search_r1/tiny_sft.yaml

makes the checkpoint from that of `tiny`, by a warm-up on traces that search for the right fact half of the time and
sometimes invent an answer. Reinforcement learning must teach the model to search for the fact of the question.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentloop.recipes.tiny.traces import drawn_rows
from agentloop.tools.search.index import build
from agentloop.tools.search.passages import Passage, as_text
from agentloop.types.messages import Message, ToolCall

FACTS = ("mass", "age", "size", "value", "speed", "power")
PLANETS = range(100, 500)
HELD_OUT_SHARE = 8
"""One in this many planets is only in the evaluation. The warm-up has no facts about these planets."""
GUESS_SHARE = 0.3
LISTENING_SHARE = 0.5
_MAX_PASSAGE_CHARS = 1500
"""The default of the tool `search`."""


def fact(planet: int, name: str) -> int:
    """Return the value in the corpus. All facts of a planet have different values."""
    return random.Random(planet).sample(range(100, 1000), len(FACTS))[FACTS.index(name)]


def passage(planet: int, name: str, value: int) -> Passage:
    """Return the passage with a fact."""
    return Passage(f"{planet}-{name}", f"planet {planet}", f"The {name} of planet {planet} is {value}.")


def question(planet: int, name: str) -> str:
    """Return the question about a fact."""
    return f"What is the {name} of planet {planet}?"


def is_held_out(planet: int) -> bool:
    """Return whether a planet is for evaluation only."""
    return planet % HELD_OUT_SHARE == 0


def write_index(path: str | Path) -> None:
    """Write the corpus of all planets as an index of the tool `search`, atomically."""
    build((passage(planet, name, fact(planet, name)) for planet in PLANETS for name in FACTS), Path(path).expanduser())


def train_rows(index: str, num_rows: int = 4096, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Return training rows, and write the corpus to `index` for the tool."""
    write_index(index)
    return _rows("train", num_rows, seed)


def held_out_rows(num_rows: int = 96, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Return evaluation rows, about planets that are not in training."""
    return _rows("held-out", num_rows, seed)


def _rows(split: str, num_rows: int, seed: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(f"{split}-{seed}")
    planets = [planet for planet in PLANETS if is_held_out(planet) == (split == "held-out")]
    for index in range(num_rows):
        planet, name = rng.choice(planets), FACTS[index % len(FACTS)]
        yield {
            "id": f"{split}-{seed}-{index}",
            "prompt": [{"role": "user", "content": question(planet, name)}],
            "answer": {"target": [str(fact(planet, name))]},
        }


def trace(rng: random.Random) -> list[Message]:
    """Draw a conversation about invented facts."""
    planet, asked, value = rng.randrange(100, 1000), rng.choice(FACTS), rng.randrange(100, 1000)
    prompt: Message = {"role": "user", "content": question(planet, asked)}
    answer: Message = {"role": "assistant", "content": f"<answer>{value}</answer>"}
    if rng.random() < GUESS_SHARE:
        return [prompt, answer]
    sought = asked if rng.random() < LISTENING_SHARE else rng.choice(FACTS)
    call = ToolCall("search", {"query": f"{sought} of planet {planet}"}, id="call_0")
    turn: Message = {"role": "assistant", "content": "", "tool_calls": [call.as_dict()]}
    found = as_text([passage(planet, sought, value)], max_chars=_MAX_PASSAGE_CHARS)
    return [prompt, turn, {"role": "tool", "content": found}, answer]


def warmup_rows(num_rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the conversations of the warm-up."""
    return drawn_rows(trace, num_rows, seed)
