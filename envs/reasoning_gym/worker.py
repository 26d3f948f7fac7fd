"""Worker of reasoning-gym (`agentloop.envs.workers.script`): makes questions and judges answers.

An item is named by its source, and made again to judge an answer: its metadata is often not valid JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import create_curriculum


class Worker:
    """Questions and verifiers of all data sets."""

    def __init__(self) -> None:
        self.questions: dict[str, tuple[Any, Mapping[str, Any]]] = {}
        """Episode -> its data set and item."""

    def rows(
        self, datasets: Mapping[str, Mapping[str, Any]], size: int, seed: int, system: str | None
    ) -> Iterator[dict[str, Any]]:
        """Yield `size` questions of one data set, or of a composite of several."""
        unknown = sorted(set(datasets) - set(reasoning_gym.factory.DATASETS))
        if unknown:
            raise ValueError(f"there is no data set {', '.join(unknown)} in reasoning-gym")
        made = {
            name: {
                "dataset": name,
                "level": spec.get("level"),
                "config": dict(spec.get("config") or {}),
                # A composite also gives its parts these seeds.
                "seed": seed + number + 1 if len(datasets) > 1 else seed,
                "size": size,
            }
            for number, (name, spec) in enumerate(datasets.items())
        }
        weights = {name: float(spec.get("weight", 1.0)) for name, spec in datasets.items()}
        if wrong := [name for name, weight in weights.items() if not weight > 0]:
            raise ValueError(f"the weight of {wrong[0]} must be above 0, got {weights[wrong[0]]:g}")
        if len(made) > 1:
            specs = [DatasetSpec(name, weights[name], configured(source)) for name, source in made.items()]
            items = reasoning_gym.create_dataset("composite", size=size, seed=seed, datasets=specs)
        else:
            items = dataset_of(json.dumps(next(iter(made.values()))))
        before = [] if system is None else [{"role": "system", "content": system}]
        if system == "default":
            before[0]["content"] = reasoning_gym.utils.SYSTEM_PROMPTS["default"]
        for index in range(size):
            item = items[index]
            source = made[item["metadata"]["source_dataset"]]
            yield {
                "id": f"{source['dataset']}-{seed}-{index}",
                "prompt": [*before, {"role": "user", "content": item["question"]}],
                "answer": item["answer"],
                "dataset": source["dataset"],
                "level": source["level"],
                "source": {**source, "index": index},
            }

    def start(self, episode: str, arguments: Mapping[str, Any]) -> None:
        """Make the item of a source. Raises `ValueError` if its question differs from the row's."""
        source = dict(arguments["source"])
        index = source.pop("index")
        dataset = dataset_of(json.dumps(source))
        item = dataset[index]
        if item["question"] != arguments["question"]:
            raise ValueError(
                f"item {index} of {source['dataset']} has a different question than the row: another version of "
                "reasoning-gym made the row"
            )
        self.questions[episode] = dataset, item

    def step(self, episode: str, arguments: Mapping[str, Any]) -> float:
        """Return the score of an answer, 0 to 1. With a `tag`, the answer is the text in its last pair."""
        dataset, item = self.questions[episode]
        text, tag = arguments["text"], arguments["tag"]
        answer = text if tag is None else reasoning_gym.utils.extract_answer(text, tag_name=tag)
        return float(dataset.score_answer(answer, item))

    def close(self, episode: str) -> None:
        """Forget an item."""
        self.questions.pop(episode, None)


def configured(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole configuration of a data set: a level of its curriculum, updated with its own options."""
    given = {"size": source["size"], "seed": source["seed"]}
    if source["level"] is None:
        return {**source["config"], **given}
    curriculum = create_curriculum(source["dataset"])
    last = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if source["level"] not in range(last + 1):  # the package takes the last level for a higher one
        raise ValueError(f"{source['dataset']} has the levels 0 to {last}, got {source['level']!r}")
    curriculum.set_global_level(source["level"])
    fields = dataclasses.asdict(curriculum.generate_configuration(given))
    return {**fields, **source["config"], **given}


@lru_cache(maxsize=1024)
def dataset_of(source: str) -> Any:
    """Return the data set of a source, which is given as JSON."""
    known = json.loads(source)
    return reasoning_gym.create_dataset(known["dataset"], **configured(known))
