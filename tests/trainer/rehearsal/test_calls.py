"""Sample calls: every family's template writes one that is read back, and their arguments fit the schema."""

import jsonschema
import pytest
from pydantic import BaseModel, Field

from agentloop.rendering import renderer_for
from agentloop.rendering.inline import InlineFormat
from agentloop.trainer.rehearsal.calls import sample_turn, sample_value
from tests.support.model_families import FAMILIES, TOOLS, renderer_of


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_writes_a_call_that_is_read_back(name):
    renderer = renderer_of(name)
    tool, ids = sample_turn(renderer, TOOLS)
    assert tool == "get_weather"
    assert ids[-1] in renderer.stop_token_ids
    assert renderer.parse(ids, tools=TOOLS).calls[0].arguments == {"city": "1"}


def test_inline_calls_are_written_as_tags():
    inline = InlineFormat(tag="code", tool="run", argument="program", result="{}", fenced=True)
    renderer = renderer_for(renderer_of("qwen2_5").tokenizer, inline=inline)
    tool, ids = sample_turn(renderer, TOOLS)
    [call] = renderer.parse(ids).calls
    assert (tool, call.name, call.arguments) == ("run", "run", {"program": "1"})


class Point(BaseModel):
    x: int = Field(gt=3)
    y: float = Field(le=0.5)


class Arguments(BaseModel):
    points: list[Point] = Field(min_length=2)
    unit: str | None
    name: str = Field(min_length=3)
    nothing: None
    flag: bool
    size: int = 7


def test_sample_arguments_fit_their_schema():
    schema = Arguments.model_json_schema()
    value = sample_value(schema, schema)
    jsonschema.validate(value, schema)
    assert value["points"] == [{"x": 4, "y": 0.5}] * 2
    assert "size" not in value
