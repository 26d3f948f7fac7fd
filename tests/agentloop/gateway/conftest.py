"""A gateway for a scripted engine, called through the official client over real HTTP."""

from array import array
from contextlib import asynccontextmanager

import pytest
from openai import AsyncOpenAI

from agentloop import Limits
from agentloop.engines.base import FinishReason, Generation
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.gateway import Gateway, Sampling


class Recorder(ScriptedEngine):
    """Generates the next turn of a script, each token with its own logprob, and records requests and turns."""

    def __init__(self, turns=(), **options):
        super().__init__([[0]], **options)
        self.turns = list(turns)
        self.asked = []
        self.params = []
        self.names = []
        self.sampled = []

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        ids = self.turns[min(len(self.asked), len(self.turns) - 1)]
        self.asked.append(list(prompt))
        self.params.append(params)
        self.names.append(trajectory_id)
        self.policy_version += 1
        number = len(self.asked)
        cut = ids[: params.max_tokens]
        whole = len(cut) == len(ids) and ids[-1] in params.stop_token_ids
        turn = Generation(
            array("i", cut),
            array("f", [-number - i / 1024 for i in range(len(cut))]),
            array("i", [self.policy_version] * len(cut)),
            FinishReason.STOP if whole else FinishReason.LENGTH,
        )
        self.sampled.append(turn)
        return turn


@pytest.fixture
def recorder(ids_of):
    return lambda *turns, **options: Recorder([ids_of(turn) for turn in turns], **options)


@pytest.fixture
def opened(renderer):
    """`async with opened(engine) as (session, endpoint)`."""

    def serve(engine, *, limits=None, sampling=None, chosen_by="run", seed=0):
        return Gateway(engine, renderer).session(
            limits=limits or Limits(),
            sampling=sampling or Sampling(),
            chosen_by=chosen_by,
            trajectory_id="t",
            seed=seed,
        )

    return serve


@pytest.fixture
def serving(opened):
    """`async with serving(engine) as (client, session)`."""

    @asynccontextmanager
    async def serve(engine, **options):
        async with (
            opened(engine, **options) as (session, endpoint),
            AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client,
        ):
            yield client, session

    return serve


@pytest.fixture
def ask():
    """Ask a question, or go on with a conversation, and give the choice."""

    async def create(client, messages, **options):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        answer = await client.chat.completions.create(model="any", messages=messages, **options)
        return answer.choices[0]

    return create
