"""Questions of reasoning-gym, and conversations that answer them with the code interpreter.

The package `reasoning-gym` makes the questions and their answers: `pip install reasoning-gym`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from agentloop.errors import UserError
from agentloop.types.messages import Message, ToolCall

Row = dict[str, Any]

SYSTEM = "Compute with the code interpreter where that helps. Write the final answer as <answer>...</answer>."

DATASETS: dict[str, dict[str, Any]] = {
    "chain_sum": {"max_terms": 6, "max_digits": 4},
    "products": {"max_digits": 5},
    "gcd": {},
    "lcm": {},
    "count_primes": {"max_n": 2000},
    "count_bits": {},
    "simple_equations": {},
    "syllogism": {},
    "aiw": {},
}
"""Data set of reasoning-gym -> its options: arithmetic, algebra and logic."""


def rows(per_dataset: int, *, seed: int) -> Iterator[Row]:
    """Yield `per_dataset` tasks of each data set in turn, as rows of `data.train` and `data.eval`.

    Raises `UserError` if reasoning-gym is not installed.
    """
    for name, entry in _entries(per_dataset, seed):
        yield {
            "id": f"{name}-{seed}-{entry['metadata']['source_index']}",
            "prompt": _prompt(entry),
            "answer": str(entry["answer"]),
        }


def traces(per_dataset: int, *, seed: int) -> Iterator[Row]:
    """Yield conversations that reach the right answer, as rows for `agentloop sft`.

    The tool message is the answer itself: every program prints nothing else. Raises `UserError` as `rows`.
    """
    for name, entry in _entries(per_dataset, seed):
        messages = _prompt(entry)
        answer = str(entry["answer"])
        code = program(name, entry["metadata"])
        if code is not None:
            call = ToolCall("code_interpreter", {"code": code}, id="call_0")
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call.as_dict()]},
                {"role": "tool", "content": answer},
            ]
        yield {"messages": [*messages, {"role": "assistant", "content": f"<answer>{answer}</answer>"}]}


def program(dataset: str, metadata: Mapping[str, Any]) -> str | None:
    """Return Python code that prints the answer; None for data sets that are answered without code."""
    match dataset:
        case "chain_sum" | "products":
            return f"print({metadata['expression']})"
        case "gcd" | "lcm":
            numbers = ", ".join(map(str, metadata["numbers"]))
            return f"import math\nprint(math.{dataset}({numbers}))"
        case "count_primes":
            numbers = f"range({metadata['start']}, {metadata['end']} + 1)"
            return f"print(sum(n > 1 and all(n % d for d in range(2, n)) for n in {numbers}))"
        case "count_bits":
            return f'print(bin({metadata["number"]}).count("1"))'
        case "simple_equations":
            name, equation = metadata["variable"], metadata["equation"].replace("=", "==")
            return f"for {name} in range(-100, 1001):\n    if {equation}:\n        print({name})"
        case _:
            return None


def _entries(per_dataset: int, seed: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        import reasoning_gym
    except ImportError as error:
        raise UserError("The tasks of smollm2 need reasoning-gym: pip install reasoning-gym.") from error
    by_name = {
        name: reasoning_gym.create_dataset(name, size=per_dataset, seed=seed, **options)
        for name, options in DATASETS.items()
    }
    for index, name in itertools.product(range(per_dataset), by_name):
        entry = by_name[name][index]
        if name == "simple_equations" and entry["metadata"]["variable"] not in entry["metadata"]["equation"]:
            continue  # The terms with the variable cancel out ("0 = 0"), so that every number is a solution.
        yield name, entry


def _prompt(entry: Mapping[str, Any]) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": entry["question"].strip()}]
