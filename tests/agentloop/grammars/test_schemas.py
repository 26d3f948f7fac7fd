"""Schemas with keywords that xgrammar ignores are refused, and the others are obeyed."""

import json
import random

import jsonschema
import numpy as np
import pytest

from agentloop.errors import UserError
from agentloop.grammars.compiler import GrammarCompiler
from agentloop.grammars.schemas import check_schemas
from agentloop.types.grammar import Grammar

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
END = "<|im_end|>"


def tag_of(schema):
    form = {"type": "json_schema", "json_schema": schema, "style": "json", "max_whitespace_cnt": 1}
    return json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": [form]}})


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "array", "items": DIGIT, "uniqueItems": True}, "`uniqueItems` in #, which is not enforced"),
        ({"type": "integer", "not": {"const": 3}}, "`not` in #, which is not enforced"),
        ({"type": "object", "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}}, "`if` in #"),
        ({"type": "array", "items": DIGIT, "contains": {"const": 3}}, "`contains` in #"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "`dependentRequired` in #"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "`allOf` in #, which is only enforced with one member"),
        (
            {"type": "string", "minLength": 3, "pattern": "^a+$"},
            "`minLength` in #, which is not enforced next to `patt",
        ),
        ({"type": "string", "maxLength": 3, "format": "email"}, "`maxLength` in #, which is not enforced next to this"),
        ({"type": "string", "pattern": "^(?!b)[ab]$"}, "`pattern` in #, whose lookahead"),
        ({"type": ["number", "null"], "multipleOf": 2}, "`multipleOf` in #, which is only enforced with a whole"),
        (
            {"type": "integer", "multipleOf": 3, "minimum": 10},
            "`multipleOf` in #, which is not enforced next to bounds",
        ),
        ({"maxLength": 3}, "`maxLength` in #, which is not enforced without a `type`"),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "`required` in #, which is only enforced for"),
        ({"$ref": "#/$defs/A", "$defs": {"A": DIGIT}, "minimum": 5}, "`minimum` in #, which is not enforced next to `"),
        (
            {"type": "string", "enum": ["a", "bb"], "minLength": 2},
            "`minLength` in #, which is not enforced next to `enum",
        ),
        ({"$ref": "http://localhost/schema"}, "`[$]ref` in #, which is only read if"),
        (
            {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": False},
            "next to which `additionalProperties: false`",
        ),
        (
            {"type": "object", "properties": {"a": {}}, "patternProperties": {"^[ab]$": DIGIT}},
            "`patternProperties` in #, which is only enforced with one pattern",
        ),
    ],
)
def test_a_keyword_that_would_be_ignored_is_named(schema, problem):
    with pytest.raises(UserError, match=problem):
        check_schemas(tag_of(schema))


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, "#/properties/a,"),
        ({"type": "object", "properties": {"propertyNames": {"minLength": 3}}}, "#/properties/propertyNames,"),
        ({"type": "array", "items": {"anyOf": [DIGIT, {"not": {}}]}}, "#/items/anyOf/1,"),
        ({"type": "array", "prefixItems": [{"not": {}}]}, "#/prefixItems/0,"),
        ({"type": "object", "additionalProperties": {"not": {}}}, "#/additionalProperties,"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"oneOf": [{"not": {}}]}}}, "#/[$]defs/A/oneOf/0,"),
    ],
)
def test_the_error_names_the_place_of_the_keyword(schema, place):
    with pytest.raises(UserError, match=place):
        check_schemas(tag_of(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"const": {"not": 1}, "default": {"if": 2}}}, "title": "T"},
        {"type": "object", "properties": {"not": DIGIT, "if": DIGIT}},
        {"enum": [{"uniqueItems": True}], "examples": [{"contains": 1}]},
        {"type": "string", "const": "a", "enum": ["a"]},
        {"type": "string", "format": "uri", "minLength": 1},
        {"type": "string", "format": "email", "pattern": "^(?!a)b$"},
        {"type": "array", "items": DIGIT, "uniqueItems": False},
        {"type": "string", "pattern": r"^\(?=$"},
    ],
)
def test_what_forbids_nothing_more_is_taken(schema):
    check_schemas(tag_of(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {
            "$defs": {"A": DIGIT},
            "type": "object",
            "properties": {"a": {"allOf": [{"$ref": "#/$defs/A"}], "default": 1}},
        },
        {"oneOf": [DIGIT, {"type": "null"}], "discriminator": {"propertyName": "kind"}},
        {"type": "integer", "multipleOf": 50},
        {"type": "array", "prefixItems": [DIGIT, {"type": "boolean"}], "minItems": 2, "maxItems": 2},
        {"type": "object", "propertyNames": {"enum": ["u", "v"]}, "additionalProperties": DIGIT, "maxProperties": 1},
        {"type": "object", "patternProperties": {"^[ab]$": DIGIT}, "minProperties": 1, "maxProperties": 1},
        {"type": ["string", "null"], "minLength": 2, "maxLength": 3},
        {"type": "string", "pattern": "^[ab]{2}$"},
        {"properties": {"a": DIGIT}, "required": ["a"]},
    ],
)
def test_every_walk_over_a_schema_that_is_taken_obeys_it(schema, tokenizer, ids_of):
    compiler = GrammarCompiler(tokenizer, len(tokenizer))
    check_schemas(tag_of(schema))
    choose = random.Random(0)
    for _ in range(20):
        state, ids = compiler.begin(Grammar(tag_of(schema), tuple(ids_of(END)))), []
        while (bits := state.allowed()) is not None:
            options = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[: len(tokenizer)])
            ids.append(int(choose.choice(options)))
            assert state.accept(ids[-1])
        jsonschema.validate(json.loads(tokenizer.decode(ids[:-1]), strict=False), schema)
