"""Fixtures of a run of sums: a scripted model, a real tool, a learner that really learns. And a model for learners."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentloop.loading import load_object

_FIXTURES = Path(__file__).parent / "sums" / "fixtures.py"
sums_model = load_object(f"{_FIXTURES}:sums_model", "fixture")
sums = load_object(f"{_FIXTURES}:sums", "fixture")

_run_on_ranks = load_object(f"{Path(__file__).parent / 'ranks.py'}:run_on_ranks", "function")
_save_tiny_qwen3 = load_object(f"{Path(__file__).parent / 'tiny.py'}:save_tiny_qwen3", "function")


@pytest.fixture(scope="session")
def run_on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Call as run_on_ranks(ranks, script, *arguments)."""

    def run(ranks: int, script: Path, *arguments: object, timeout: float = 300.0) -> None:
        _run_on_ranks(ranks, script, *arguments, timeout=timeout, log=tmp_path_factory.mktemp("ranks") / "log")

    return run


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Call as tiny_qwen3(name=value, ...), with changes of the config: a folder of a saved model, only to be read."""
    made: dict[str, Path] = {}

    def folder(**changes: object) -> Path:
        key = repr(sorted(changes.items()))
        if key not in made:
            made[key] = _save_tiny_qwen3(tmp_path_factory.mktemp("tiny_qwen3"), **changes)
        return made[key]

    return folder
