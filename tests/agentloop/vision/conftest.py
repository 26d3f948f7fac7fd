"""Return `vision_model(family)`, which gives the folder of a small model shared by all tests."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from agentloop.registry.named_objects import load_object

_build = load_object(f"{Path(__file__).parent / 'models.py'}:build_vision_model", "function")


@pytest.fixture(scope="session")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda family: _build(tmp_path_factory.mktemp(family), family))
