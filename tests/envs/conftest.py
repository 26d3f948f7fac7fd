"""Episodes in which a script plays, through the real loop and a real tokenizer."""

import asyncio
import json

import pytest

from agentloop import AgentLoop, Limits
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for

END = "<|im_end|>"


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="session")
def renderer(tokenizer):
    return renderer_for(tokenizer)


@pytest.fixture
def play(renderer, tokenizer):
    """Play an environment with `turns`: texts, or the arguments of a call of act."""

    def run(env, turns, **limits):
        said = [
            turn
            if isinstance(turn, str)
            else f'<tool_call>\n{{"name": "act", "arguments": {json.dumps(turn)}}}\n</tool_call>'
            for turn in turns
        ]
        ids = [tokenizer.backend_tokenizer.encode(text + END, add_special_tokens=False).ids for text in said]
        loop = AgentLoop(ScriptedEngine(ids), renderer, limits=Limits(**limits))
        return asyncio.run(loop.run(env, trajectory_id="t", group_id="g", seed=1))

    return run
