import enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentloop.errors import UserError
from agentloop.tools import docstrings
from agentloop.tools.base import ToolContext
from agentloop.tools.schema import ArgumentError, Arguments, SchemaArguments


class Unit(enum.Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


class Point(BaseModel):
    """A place on the map."""

    x: float
    y: float = Field(0.0, description="northwards", ge=-90)


class Tree(BaseModel):
    value: int
    children: "list[Tree]" = []


def everything(
    city: Annotated[str, "City name"],
    days: Annotated[int, Field(description="How many", ge=1, le=14)] = 7,
    unit: Literal["C", "F"] = "C",
    box: Annotated[list[float], Field(min_length=4, max_length=4)] = (0, 0, 1, 1),
    at: Point | None = None,
    tags: dict[str, list[int]] | None = None,
    exact: bool = False,
) -> str:
    """Forecast.

    Args:
        city: not this, the annotation wins
        unit (str): Celsius
            or Fahrenheit
        exact: To the digit: yes or no.

    Returns:
        exact: nothing of this
    """


def test_full_schema_reaches_the_model():
    assert Arguments(everything).schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "City name"},
            "days": {"type": "integer", "description": "How many", "minimum": 1, "maximum": 14, "default": 7},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C", "description": "Celsius or Fahrenheit"},
            "box": {
                "type": "array",
                "items": {"type": "number"},
                "minItems": 4,
                "maxItems": 4,
                "default": [0, 0, 1, 1],
            },
            "at": {
                "anyOf": [
                    {
                        "type": "object",
                        "description": "A place on the map.",
                        "required": ["x"],
                        "properties": {
                            "x": {"type": "number"},
                            "y": {"type": "number", "description": "northwards", "minimum": -90, "default": 0.0},
                        },
                    },
                    {"type": "null"},
                ],
                "default": None,
            },
            "tags": {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
                    {"type": "null"},
                ],
                "default": None,
            },
            "exact": {"type": "boolean", "default": False, "description": "To the digit: yes or no."},
        },
    }


def test_enums_and_custom_types_are_converted():
    def function(unit: Unit, at: Point): ...

    arguments = Arguments(function)
    assert arguments.schema["properties"]["unit"] == {"type": "string", "enum": ["C", "F"]}
    assert arguments.validate({"unit": "F", "at": {"x": 1}}) == {"unit": Unit.FAHRENHEIT, "at": Point(x=1)}


def test_function_without_arguments():
    def function(): ...

    assert Arguments(function).schema == {"type": "object", "additionalProperties": False, "properties": {}}
    assert Arguments(function).validate({}) == {}


def test_recursive_type_is_expanded_once():
    def function(tree: Tree): ...

    tree = Arguments(function).schema["properties"]["tree"]
    assert tree["properties"]["children"]["items"] == {"type": "object"}
    assert (
        Arguments(function).validate({"tree": {"value": 1, "children": [{"value": 2}]}})["tree"].children[0].value == 2
    )


def test_parameter_named_title_is_kept():
    def function(title: str, default: int = 3): ...

    assert Arguments(function).schema["properties"] == {
        "title": {"type": "string"},
        "default": {"type": "integer", "default": 3},
    }


@pytest.mark.parametrize("name", ["json", "copy", "schema", "model_config", "_private", "__class", "self_"])
@pytest.mark.filterwarnings("error")
def test_parameters_may_have_any_name(name):
    namespace: dict[str, Any] = {}
    exec(f"def function({name}: int): ...", namespace)
    arguments = Arguments(namespace["function"])
    assert list(arguments.schema["properties"]) == [name]
    assert arguments.validate({name: 1}) == {name: 1}


def test_pydantic_field_works_as_default():
    def function(
        count: int = Field(3, ge=1, description="how many"),
        city: str = Field(max_length=5),
        tags: list[str] = Field(default_factory=list),  # noqa: B008
    ): ...

    arguments = Arguments(function)
    assert arguments.schema["properties"]["count"] == {
        "type": "integer",
        "minimum": 1,
        "default": 3,
        "description": "how many",
    }
    assert arguments.schema["required"] == ["city"]
    assert arguments.validate({"city": "Rome"}) == {"count": 3, "city": "Rome", "tags": []}
    with pytest.raises(ArgumentError, match="city: string should have at most 5 characters"):
        arguments.validate({"city": "Florence"})


def test_defaults_are_not_shared():
    def function(items: list[int] = []): ...  # noqa: B006

    arguments = Arguments(function)
    arguments.validate({})["items"].append(1)
    assert arguments.validate({}) == {"items": []}


def test_skipped_parameters_need_no_hint():
    def function(ctx, city: str): ...

    assert list(Arguments(function, skip=1).schema["properties"]) == ["city"]


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("city", "'city' of function has no type hint"),
        ("*cities: str", r"'\*cities'"),
        ("**cities: str", r"'\*\*cities'"),
        ("city: str, /", "'city'"),
        ("city: 'Nowhere'", "names 'Nowhere'"),
        (
            "city: object()",
            "No JSON Schema describes the parameter 'city' of function: .*<object object at .*>. Use types",
        ),
        ("days: int, city: object()", "No JSON Schema describes the parameter 'city' of function"),
        (
            "city: Annotated[str, Field(pattern='^(?!x)')]",
            r"describes the parameter 'city' of function: look-around, .*, is not supported\. Correct its type hint\.$",
        ),
        (
            "city: Annotated[str, Field(default_factory=str)] = ''",
            "'city' of function: cannot specify both default and default_factory",
        ),
        ("city: str, ctx: ToolContext", "'ctx' of function is a ToolContext, .*: name it ctx, and make it the first"),
        ("city: str, ctx: 'ToolContext | None'", "'ctx' of function is a ToolContext"),
        ("context: ToolContext, city: str", "'context' of function is a ToolContext"),
    ],
)
def test_unsupported_signatures_raise(signature, message):
    namespace: dict[str, Any] = {"ToolContext": ToolContext, "Annotated": Annotated, "Field": Field}
    exec(f"def function({signature}): ...", namespace)
    with pytest.raises(UserError, match=message):
        Arguments(namespace["function"])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "city: field required"),
        ({"city": None}, "city: input should be a valid string, got None"),
        (
            {"city": "Rome", "days": 3.5},
            "days: input should be a valid integer, got a number with a fractional part, got 3.5",
        ),
        (
            {"city": "Rome", "days": "3.5"},
            "days: input should be a valid integer, unable to parse string as an integer, got '3.5'",
        ),
        ({"city": "Rome", "days": 0}, "days: input should be greater than or equal to 1, got 0"),
        ({"city": "Rome", "unit": "K"}, "unit: input should be 'C' or 'F', got 'K'"),
        ({"city": "Rome", "exact": "yes"}, "exact: input should be true or false, got 'yes'"),
        ({"city": "Rome", "exact": 1}, "exact: input should be true or false, got 1"),
        (
            {"city": "Rome", "box": [1, 2, 3, "x"]},
            "box.3: input should be a valid number, unable to parse string as a number, got 'x'",
        ),
        ({"city": "Rome", "at": {}}, "at.x: field required"),
        ({"cty": "Rome"}, "city: field required\ncty: unknown argument. Did you mean 'city'?"),
        ({"city": ["x" * 90]}, "city: input should be a valid string, got ['" + "x" * 78 + "..."),
    ],
)
def test_each_problem_is_reported_on_one_line(given, problem):
    with pytest.raises(ArgumentError) as error:
        Arguments(everything).validate(given)
    assert str(error.value) == problem


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"days": "3"}, "days", 3),
        ({"days": 3.0}, "days", 3),
        ({"exact": "True"}, "exact", True),
        ({"exact": False}, "exact", False),
        ({"box": ["1", 2, 3, 4]}, "box", [1.0, 2.0, 3.0, 4.0]),
        ({"at": {"x": "1.5"}}, "at", Point(x=1.5)),
    ],
)
def test_values_are_coerced_to_the_declared_types(given, name, value):
    validated = Arguments(everything).validate({"city": "Rome", **given})[name]
    assert validated == value
    assert type(validated) is type(value)


def test_optional_bool_accepts_null_and_is_not_coerced():
    def function(flag: bool | None): ...

    assert Arguments(function).validate({"flag": None}) == {"flag": None}
    with pytest.raises(ArgumentError, match="true or false"):
        Arguments(function).validate({"flag": "on"})


@pytest.mark.parametrize(
    ("hint", "given", "expected"),
    [
        (str | int | bool | None, "hello", "hello"),
        (str | int | bool | None, 3, 3),
        (int | bool, 3, 3),
        (int | bool, "true", True),
        (bool | Literal["auto"], "auto", "auto"),
        (Annotated[bool | float, Field(description="d")], 2.5, 2.5),
        (Annotated[bool, Field(description="d")] | None, "False", False),
    ],
)
def test_other_types_beside_bool_are_accepted(hint, given, expected):
    def function(value): ...

    function.__annotations__["value"] = hint
    value = Arguments(function).validate({"value": given})["value"]
    assert value == expected
    assert type(value) is type(expected)


def test_docstrings_become_descriptions():
    text = """First line.

        More.

        Args:
            a: one
            b (int, optional): two: with a colon
              and: a second line
            c:
                below
        Returns:
            d: no
        """
    description, entries = docstrings.split(text)
    assert description == "First line.\n\nMore."
    assert entries == {"a": "one", "b": "two: with a colon and: a second line", "c": "below"}
    assert docstrings.split(None) == ("", {})
    assert docstrings.split("Only this.") == ("Only this.", {})


def test_patterns_that_python_cannot_compile_are_shown_but_not_checked():
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^\\p{L}+$"},
            "pattern": {"type": "string", "pattern": "^a"},
        },
        "patternProperties": {"^\\p{Lu}": {"type": "string"}, "^x": {"type": "integer"}},
        "additionalProperties": False,
    }
    arguments = SchemaArguments(schema, what="a tool")
    assert arguments.schema == schema
    assert arguments.validate({"name": "1", "pattern": "ab", "Other": ""})
    for wrong in ({"name": 1}, {"pattern": "b"}, {"x": ""}):
        with pytest.raises(ArgumentError):
            arguments.validate(wrong)


@pytest.mark.parametrize("reference", ["#/$defs/Missing", "#anchor", "http://127.0.0.1:1/schema"])
def test_a_reference_to_nothing_is_an_error(reference):
    with pytest.raises(UserError, match=r"a tool refers to '.*', which does not exist"):
        SchemaArguments({"properties": {"a": {"items": {"$ref": reference}}}}, what="a tool")


@pytest.mark.parametrize(
    "definitions",
    [
        {"A": {"$ref": "#/$defs/A"}},
        {"A": {"allOf": [{"$ref": "#/$defs/B"}]}, "B": {"if": True, "then": {"$ref": "#/$defs/A"}}},
        {"A": {"$dynamicAnchor": "a", "not": {"$dynamicRef": "#a"}}},
    ],
)
def test_a_reference_that_leads_only_to_itself_is_an_error(definitions):
    with pytest.raises(UserError, match=r"a tool refers to '.*', which leads back to itself for the same value"):
        SchemaArguments({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": definitions}, what="a tool")


def test_references_that_meet_again_are_followed_once():
    definitions = {f"D{n}": {"allOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 2} for n in range(60)}
    properties = {"a": {"$ref": "#/$defs/D0"}}
    SchemaArguments({"properties": properties, "$defs": definitions | {"D60": {"type": "integer"}}}, what="a tool")


def test_a_dynamic_reference_to_nothing_is_an_error():
    with pytest.raises(UserError, match=r"a tool refers to '#nothing', which does not exist"):
        SchemaArguments({"properties": {"a": {"$dynamicRef": "#nothing"}}}, what="a tool")


def test_a_schema_may_contain_itself():
    tree = {"anyOf": [{"type": "null"}, {"properties": {"left": {"$ref": "#/$defs/Tree"}}}]}
    arguments = SchemaArguments({"properties": {"a": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree": tree}}, what="a tool")
    assert arguments.validate({"a": {"left": {"left": None}}})


def test_references_are_followed():
    schema = {
        "properties": {"a": {"$ref": "#/$defs/B"}},
        "$defs": {"B": {"$ref": "#c"}, "C": {"$anchor": "c", "type": "integer"}},
    }
    arguments = SchemaArguments(schema, what="a tool")
    assert arguments.validate({"a": 1}) == {"a": 1}
    with pytest.raises(ArgumentError, match="a: '1' is not of type 'integer'"):
        arguments.validate({"a": "1"})
