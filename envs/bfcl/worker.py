"""Worker of BFCL (`agentloop.envs.workers.script`): runs the functions of multi-turn tasks, and checks the turns.

The package evaluates calls as Python. Here a call is a method that the package documents, with arguments from JSON; the
calls of the published solution are parsed.
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import bfcl_eval
from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC as MORE_FUNCTIONS
from bfcl_eval.constants.executable_backend_config import (
    CLASS_FILE_PATH_MAPPING,
    MULTI_TURN_FUNC_DOC_FILE_MAPPING,
    STATELESS_CLASSES,
)
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker

DATA = Path(bfcl_eval.__file__).parent / "data"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""Types in the package's documents -> their names in JSON Schema."""


class Worker:
    """Episodes of all four categories."""

    def __init__(self) -> None:
        self.episodes: dict[str, Episode] = {}

    def rows(self, categories: Sequence[str], start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yield the tasks `start` to `stop` of each category."""
        unknown = sorted(set(categories) - set(CATEGORIES))
        if unknown:
            raise ValueError(f"BFCL has no category {', '.join(unknown)}: use {', '.join(CATEGORIES)}")
        for category in categories:
            for name in list(entries(category))[start:stop]:
                yield {"id": name, "category": category}

    def start(self, episode: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a task. Return its first messages and its functions."""
        self.episodes[episode] = begun = Episode(arguments["category"], arguments["id"])
        hidden = [name for names in begun.missed.values() for name in names]
        return {"messages": begun.messages(), "functions": begun.schemas(), "hidden": hidden}

    def step(self, episode: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run a call, or end a turn if there is none."""
        played = self.episodes[episode]
        if "call" in arguments:
            return played.call(arguments["call"], arguments["arguments"])
        return played.end_turn()

    def close(self, episode: str) -> None:
        """Forget an episode."""
        self.episodes.pop(episode, None)


class Episode:
    """Two sets of instances of a task's classes: one for the model, one for the published solution."""

    def __init__(self, category: str, name: str) -> None:
        self.entry, self.solution = entries(category)[name]
        is_long = "long_context" in category
        self.own = instances(self.entry, is_long)
        self.published = instances(self.entry, is_long)
        self.missed = {int(turn): names for turn, names in self.entry.get("missed_function", {}).items()}
        self.turn = 0
        self.calls_of_turn = 0
        self.results: list[str] = []
        """Results of the model's calls in all turns."""
        self.right = 0
        self.is_wrong = False

    def documents(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Return the functions that may be called: name -> class and document."""
        return {
            document["name"]: (owner, document)
            for owner in self.entry["involved_classes"]
            for document in documents_of(owner)
        }

    def schemas(self) -> list[dict[str, Any]]:
        """Return the functions as JSON Schema."""
        return [schema_of(document) for _, document in self.documents().values()]

    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Return the messages that begin the turn, with the functions that the turn adds."""
        names = self.missed.get(self.turn)
        if names is None:
            return self.entry["question"][self.turn]
        added = [json.dumps(schema_of(self.documents()[name][1])) for name in names]
        return [{"role": "user", "content": "\n".join([*added, MORE_FUNCTIONS])}]

    def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run a call of the model."""
        result, is_error = run(self.method(self.own, name), (), arguments)
        self.results.append(result)
        self.calls_of_turn += 1
        return {"content": result, "is_error": is_error}

    def end_turn(self) -> dict[str, Any]:
        """Check the turn. Return the messages of the next turn, or the reward after the last one."""
        solution = [self.solve(text) for text in self.solution[self.turn]]
        if not self.is_wrong and solution:
            self.is_wrong = (
                not self.calls_of_turn
                or not state_checker(self.own, self.published)["valid"]
                or not response_checker(self.results, solution, self.turn)["valid"]
            )
        self.right += not self.is_wrong
        self.turn += 1
        self.calls_of_turn = 0
        if self.turn < len(self.solution):
            return {"messages": self.messages()}
        share = self.right / len(self.solution)
        return {"terminated": True, "reward": float(not self.is_wrong), "metrics": {"reward/turns_right": share}}

    def solve(self, text: str) -> str:
        """Run a call of the published solution, such as cd(folder='x')."""
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call), text
        assert isinstance(call.func, ast.Name), text
        places = [ast.literal_eval(each) for each in call.args]
        arguments = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        return run(self.method(self.published, call.func.id), places, arguments)[0]

    def method(self, of: Mapping[str, Any], name: str) -> Callable[..., Any]:
        """Return a documented method. Raises `ValueError` for all others."""
        found = self.documents().get(name)
        if found is None:
            raise ValueError(f"the task has no function {name}")
        return getattr(of[found[0]], name)


def run(method: Callable[..., Any], places: Sequence[Any], arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the result of a call in the package's format, and whether it raised."""
    try:
        result = method(*places, **copy.deepcopy(arguments))
        if isinstance(result, str):
            return result, False
        if not isinstance(result, dict):
            return str(result), False
        try:
            return json.dumps(result), False
        except (TypeError, ValueError):
            return str(result), False
    except Exception as error:  # the model reads the error of a function
        return f"Error during execution: {error}", True


def instances(entry: Mapping[str, Any], is_long: bool) -> dict[str, Any]:
    """Return class name -> an instance with the task's scenario."""
    made = {}
    for owner in entry["involved_classes"]:
        made[owner] = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[owner]), owner)()
        if owner not in STATELESS_CLASSES:
            scenario = copy.deepcopy(entry["initial_config"].get(owner, {}))
            made[owner]._load_scenario(scenario, long_context=is_long)
    return made


def schema_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool schema of a function."""
    return {
        "name": document["name"],
        "description": document["description"],
        "parameters": as_json_schema(document["parameters"]),
    }


def as_json_schema(value: Any) -> Any:
    """Convert a schema of the package to JSON Schema."""
    if isinstance(value, list):
        return [as_json_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: TYPES.get(each, each) if key == "type" and isinstance(each, str) else as_json_schema(each)
        for key, each in value.items()
    }


@cache
def entries(category: str) -> dict[str, tuple[Mapping[str, Any], Sequence[Sequence[str]]]]:
    """Return id -> a task of a category and its solution."""
    file = f"BFCL_v4_multi_turn_{category}.json"
    solutions = {each["id"]: each["ground_truth"] for each in lines(DATA / "possible_answer" / file)}
    return {entry["id"]: (entry, solutions[entry["id"]]) for entry in lines(DATA / file)}


@cache
def documents_of(owner: str) -> Sequence[Mapping[str, Any]]:
    """Return the documents of a class's functions."""
    return lines(DATA / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[owner])


def lines(file: Path) -> list[Any]:
    """Return the objects of a file of JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
