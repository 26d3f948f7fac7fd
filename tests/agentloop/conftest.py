"""A small real tokenizer and renderer, and scripts written as text."""

from collections.abc import Callable

import pytest

from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="session")
def renderer(tokenizer):
    return renderer_for(tokenizer)


@pytest.fixture(scope="session")
def ids_of(tokenizer) -> Callable[[str], list[int]]:
    """Text, control tokens recognised, to ids."""
    return lambda text: tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
