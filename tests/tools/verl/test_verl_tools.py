import asyncio
import io
import time
from pathlib import Path

import pytest
import yaml
from PIL import Image

from agentloop.envs.datasets.rows import read_row
from agentloop.envs.rewards import load_reward
from agentloop.errors import FailureKind, UserError
from agentloop.registry.named_objects import load_object
from agentloop.tools import registry
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall
from agentloop.types.trajectory import Trajectory

TOOLS = '''
from PIL import Image

from agentloop.tools.verl import BaseTool, OpenAIFunctionToolSchema, ToolResponse

LIVING = {}

class Guess(BaseTool):
    """A tool like verl's examples: it keeps the state of a trajectory by the id of the instance."""

    async def create(self, instance_id=None, ground_truth=None, **kwargs):
        instance_id, response = await super().create(instance_id, **kwargs)
        LIVING[instance_id] = {"truth": ground_truth or kwargs["create_kwargs"].get("ground_truth"), "tries": 0}
        return instance_id, response

    async def execute(self, instance_id, parameters, **kwargs):
        state = LIVING[instance_id]
        state["tries"] += 1
        hit = parameters["number"] == state["truth"]
        text = f"{'yes' if hit else 'no'}, try {state['tries']} of {kwargs['agent_data'].request_id}"
        return ToolResponse(text=text), float(hit) if hit else None, {"tries": state["tries"], "note": "not a number"}

    async def release(self, instance_id, **kwargs):
        del LIVING[instance_id]


class Draw(BaseTool):
    def get_openai_tool_schema(self):
        function = {"name": "draw", "description": "Draw.", "parameters": {"type": "object", "properties": {}}}
        return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})

    async def execute(self, instance_id, parameters, **kwargs):
        images = [Image.new("RGB", (2, 2)), None]
        return ToolResponse(text=f"after {len(kwargs['agent_data'].image_data)}", image=images), 0.0, None


class Note(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        data = kwargs["agent_data"]
        data.extra_fields.setdefault("noted", []).append(self.name)
        data.metrics["messages"] = len(data.messages)
        return ToolResponse(text="noted"), 0.0, {}


class Look(BaseTool):
    async def create(self, instance_id=None, **kwargs):
        self.image = kwargs["create_kwargs"]["image"]
        return await super().create(instance_id)

    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text=f"{type(self.image).__name__} {self.image.size}"), 0.0, {}


class Early(BaseTool):
    """The first versions returned plain strings."""

    async def create(self, instance_id=None, **kwargs):
        return "me"

    async def execute(self, instance_id, parameters, **kwargs):
        return f"{instance_id} {parameters}", 0.0, {}
'''

YAML = """
tools:
  - class_name: {file}:Guess
    config: {{type: native}}
    tool_schema:
      type: function
      function:
        name: guess
        description: Guess a number.
        parameters:
          type: object
          properties:
            number: {{type: integer, minimum: 0, maximum: 9}}
          required: [number]
  - class_name: {file}:Draw
    config: {{type: native}}
  - class_name: {file}:Early
    config: {{type: native}}
    tool_schema: {{type: function, function: {{name: early, description: Early.}}}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "their_tools.py").write_text(TOOLS)
    path = tmp_path / "tools.yaml"
    path.write_text(YAML.format(file=tmp_path / "their_tools.py"))
    return path


def _toolset(config: Path, **options) -> tuple[Toolset, dict]:
    tools = registry.load_all("agentloop.tools.verl.config:VerlTools", config=str(config), **options)
    return Toolset(tools), load_object(f"{config.parent / 'their_tools.py'}:LIVING", "state")


def _sessions(toolset: Toolset, trajectory_id: str, truth: int):
    row = {"tools_kwargs": {"guess": {"create_kwargs": {"ground_truth": truth}}}}
    return toolset.sessions(trajectory_id, row, 0, [object()], None)


async def _call(sessions, name: str, **arguments):
    return await sessions.call(ToolCall(name, arguments, "call_0"), time.monotonic() + 5)


def test_full_schema_reaches_the_model(config):
    toolset, _ = _toolset(config)
    assert [schema["function"]["name"] for schema in toolset.schemas] == ["guess", "draw", "early"]
    guess = toolset.schemas[0]["function"]
    assert guess["description"] == "Guess a number."
    assert guess["parameters"]["properties"]["number"] == {"type": "integer", "minimum": 0, "maximum": 9}


async def test_instance_lives_as_long_as_its_trajectory(config):
    toolset, living = _toolset(config)
    one, two = _sessions(toolset, "one", 3), _sessions(toolset, "two", 4)
    results = await asyncio.gather(_call(one, "guess", number=3), _call(two, "guess", number=3))
    assert [(result.content, result.reward) for result in results] == [
        ("yes, try 1 of one", 1.0),
        ("no, try 1 of two", 0.0),
    ]
    again = await _call(one, "guess", number=5)
    assert (again.content, again.metrics) == ("no, try 2 of one", {"tries": 2.0})
    assert len(living) == 2
    assert await one.close() == await two.close() == []
    assert not living


async def test_arguments_of_the_row_are_found_where_the_datasets_of_verl_have_them(config):
    toolset, _ = _toolset(config)
    row = {"extra_info": {"index": 0, "tools_kwargs": {"guess": {"create_kwargs": {"ground_truth": 3}}}}}
    sessions = toolset.sessions("one", row, 0, [object()], None)
    assert (await _call(sessions, "guess", number=3)).content == "yes, try 1 of one"


async def test_instance_may_live_for_one_call_as_in_verl(config):
    toolset, living = _toolset(config, per_call=True)
    sessions = _sessions(toolset, "one", 3)
    for _ in range(2):
        assert (await _call(sessions, "guess", number=3)).content == "yes, try 1 of one"
        assert not living
    assert await sessions.close() == []


async def test_images_of_a_row_are_decoded_for_create(config, tmp_path):
    schema = {"function": {"name": "look"}}
    config.write_text(
        yaml.safe_dump({"tools": [{"class_name": f"{tmp_path}/their_tools.py:Look", "tool_schema": schema}]})
    )
    toolset, _ = _toolset(config)
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4)).save(buffer, "PNG")
    stored = {"bytes": buffer.getvalue(), "path": None}
    extra_info = {"tools_kwargs": {"look": {"create_kwargs": {"image": stored}}}}
    row = read_row({"prompt": "<image>?", "images": [stored], "extra_info": extra_info}, "row 1", 0)
    assert (await _call(toolset.sessions("one", row, 0), "look")).content == "Image (6, 4)"


async def test_tools_share_extra_fields_that_the_reward_function_finds_in_extra_info(config, tmp_path):
    config.write_text(
        yaml.safe_dump(
            {
                "tools": [
                    {"class_name": f"{tmp_path}/their_tools.py:Note", "tool_schema": {"function": {"name": name}}}
                    for name in ("a", "b")
                ]
            }
        )
    )
    toolset, _ = _toolset(config)
    trajectory = Trajectory(messages=[{"role": "assistant", "content": "done"}])
    sessions = toolset.sessions("one", {}, 0, shared_state=trajectory.shared_state)
    for name in ("a", "b"):
        await _call(sessions, name)
    (tmp_path / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return len(extra_info['noted']) + extra_info['index']\n"
    )
    reward = load_reward("verl", {"function": f"{tmp_path}/reward.py:compute_score"})
    assert await reward(trajectory, {"answer": "1", "extra_info": {"index": 5, "noted": []}}) == 7


async def test_arguments_are_validated_before_the_call(config):
    toolset, living = _toolset(config)
    result = await _call(_sessions(toolset, "one", 3), "guess", number=10)
    assert result.failure is FailureKind.MODEL
    assert "10 is greater than the maximum of 9" in result.content
    assert not living


async def test_images_come_before_the_text(config):
    toolset, _ = _toolset(config)
    result = await _call(_sessions(toolset, "one", 3), "draw")
    assert [part["type"] for part in result.content] == ["image", "text"]
    assert result.content[1]["text"] == "after 1"


async def test_tools_of_early_verl_versions_work(config):
    toolset, _ = _toolset(config)
    assert (await _call(_sessions(toolset, "one", 3), "early", a=1)).content == "me {'a': 1}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "There is no tool config"),
        ("tools: [", "Cannot read"),
        ("tool: []", "needs a list 'tools'"),
        ("tools: [{config: {type: native}}]", "needs a list 'tools'"),
        ("tools: [{class_name: a.B, config: {type: mcp}}]", "use the tool 'mcp'"),
        ("tools: [{class_name: nowhere.B, config: {type: native}}]", "There is no module 'nowhere'"),
        ("tools: [{class_name: 'their_tools.py:Guess', config: {type: native}}]", "cannot be created"),
    ],
)
def test_invalid_files_raise_user_error(config, monkeypatch, text, said):
    monkeypatch.chdir(config.parent)
    config.unlink() if text is None else config.write_text(text)
    with pytest.raises(UserError, match=said):
        registry.load_all("agentloop.tools.verl.config:VerlTools", config=str(config))
