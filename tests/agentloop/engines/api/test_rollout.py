"""`agentloop rollout` against an endpoint: the gateway itself, with a scripted model behind it."""

import asyncio
import json
import re
import shlex
import threading
from inspect import signature
from pathlib import Path

import pytest

from agentloop import AgentLoop, Limits
from agentloop.cli import main
from agentloop.engines import create
from agentloop.engines.api.engine import AnthropicEngine, ApiEngine, OpenAiEngine
from agentloop.engines.api.openai import read_turn
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.agent.program import AgentProgram, AgentResult
from agentloop.gateway import Gateway, Sampling
from agentloop.rendering.transcript import Transcript
from agentloop.types.trajectory_io import read_jsonl
from tests.agentloop.engines.api.test_openai import completion

pytestmark = pytest.mark.slow


@pytest.fixture
def endpoint(renderer):
    """The address of a gateway in a thread, whose model is the script of the recipe `sums`."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    addresses, over = [], asyncio.Event()

    async def serve():
        gateway = Gateway(ScriptedEngine("tests/support/sums/sums.py:script"), renderer)
        async with gateway.session(limits=Limits(max_turns=1000), sampling=Sampling()) as (_, address):
            addresses.append(address.base_url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    yield addresses[0]
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


def agentloop(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


def test_a_recipe_is_evaluated_on_an_endpoint(sums, endpoint, capsys):
    prices = "prices: {input: 1.0, output: 2.0}"
    engine = f"engine={{name: openai, options: {{base_url: '{endpoint}', {prices}}}}}"
    assert agentloop("rollout", sums, engine, "model=some-model", "-n", 4, "--output", sums / "out") == 0
    shown = capsys.readouterr().out
    assert "playing: the model some-model" in shown
    assert "cost in dollars" in shown
    trajectories = list(read_jsonl(sums / "out" / "trajectories.jsonl"))
    assert len(trajectories) == 12
    assert max(trajectory.reward for trajectory in trajectories) == 1.0
    assert any(message["role"] == "tool" for trajectory in trajectories for message in trajectory.messages)
    figures = json.loads((sums / "out" / "summary.json").read_text())
    assert figures["cost in dollars"] == pytest.approx(sum(t.metrics["api/cost"] for t in trajectories))
    assert figures["output tokens"] == sum(t.metrics["api/output_tokens"] for t in trajectories) > 0


def test_the_example_of_the_guide_works_and_its_table_has_every_option(endpoint, capsys, tmp_path):
    page = Path("docs/reference/services.md").read_text()
    (command,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    program, *arguments = shlex.split(command.replace("\\\n", " ").replace("http://127.0.0.1:8000/v1", endpoint))
    assert program == "agentloop"
    assert agentloop(*arguments, "--output", tmp_path / "out", "--limit", 2) == 0
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    taken = set()
    for each in (ApiEngine, OpenAiEngine, AnthropicEngine):
        taken |= {name for name, one in signature(each).parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert documented == taken - {"model", "max_model_len"}  # the run sets these


def test_training_is_refused(sums, capsys):
    engine = "engine={name: openai, options: {base_url: 'http://127.0.0.1:9/v1'}}"
    assert agentloop("train", sums, engine, f"run.folder={sums}/run") == 2
    assert "engine.name=openai can only evaluate (agentloop rollout)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("rendering.chat_template_kwargs={enable_thinking: false}", "rendering.chat_template_kwargs cannot apply"),
        ("model=some-model", "No response from http://127.0.0.1:9/v1"),
    ],
)
def test_settings_that_a_service_cannot_follow_are_refused(sums, capsys, override, complaint):
    engine = "engine={name: openai, options: {base_url: 'http://127.0.0.1:9/v1'}}"
    assert agentloop("rollout", sums, engine, override, "--output", sums / "out") == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


async def test_agent_programs_play_on_a_service(service):
    async def agent(task, endpoint):
        import openai

        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            messages = [{"role": "user", "content": "Weather?"}]
            first = await client.chat.completions.create(model=endpoint.model, messages=messages)
            messages += [first.choices[0].message, {"role": "user", "content": "Sure?"}]
            second = await client.chat.completions.create(model=endpoint.model, messages=messages)
        return AgentResult(answer=second.choices[0].message.content)

    service.script += [completion("sunny"), completion("yes, sunny")]
    engine = create("openai", model="m", base_url=service.url)
    loop = AgentLoop(engine, Transcript(read_turn), limits=Limits())
    trajectory = await loop.run(AgentProgram({"id": "0", "messages": []}, agent=agent), trajectory_id="t")
    await engine.close()
    assert trajectory.answer == "yes, sunny"
    assert trajectory.num_turns == 2
    assert trajectory.branches == []
    assert trajectory.metrics["api/output_tokens"] == 20
    assert [m["role"] for m in service.requests[1]["messages"]] == ["user", "assistant", "user"]
