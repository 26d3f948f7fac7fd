"""Masks of real tokenizers: the text of a turn decides which tokens may follow."""

import json
import random
import sys

import jsonschema
import numpy as np
import pytest

from agentloop.errors import UserError
from agentloop.grammars.compiler import GrammarCompiler
from agentloop.types.grammar import Grammar

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
END = "<|im_end|>"


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GrammarCompiler(tokenizer, len(tokenizer))


@pytest.fixture
def grammar(ids_of):
    form = {"type": "json_schema", "json_schema": SCHEMA, "max_whitespace_cnt": 2}
    return Grammar(json.dumps({"type": "structural_tag", "format": form}), tuple(ids_of(END)))


def allowed_ids(bits, tokenizer):
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[: len(tokenizer)])


def test_a_key_is_certain_and_a_digit_is_not(compiler, grammar, ids_of, tokenizer):
    ids = ids_of('{"name": "a", "n": 7}' + END)
    masks = compiler.masks(grammar, ids)
    options = {
        tokenizer.decode(ids[place]): [tokenizer.decode(one) for one in allowed_ids(bits, tokenizer)]
        for place, bits in zip(masks.places, masks.bits, strict=True)
    }
    assert "name" in options["name"]
    assert all(text.lstrip('"').startswith("n") for text in options["name"])
    assert options[END] == [END]
    assert END not in options["7"]


def test_a_turn_that_the_grammar_forbids_is_named(compiler, grammar, ids_of):
    ids = ids_of('{"name": 3')
    with pytest.raises(UserError, match=f"Token {len(ids) - 1} of a turn"):
        compiler.masks(grammar, ids)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no JSON", "Failed to parse JSON"),
        ("{}", "must have a format field"),
        (
            '{"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "colour"}}}',
            'Unsupported type "colour"',
        ),
    ],
)
def test_what_is_no_grammar_is_refused(compiler, text, message):
    with pytest.raises(UserError, match=message):
        compiler.begin(Grammar(text, ()))


def test_every_walk_over_allowed_tokens_is_valid_json(compiler, grammar, tokenizer, ids_of):
    choose = random.Random(0)
    for _ in range(30):
        state, ids = compiler.begin(grammar), []
        while (bits := state.allowed()) is not None:
            ids.append(int(choose.choice(allowed_ids(bits, tokenizer))))
            assert state.accept(ids[-1])
        assert ids[-1:] == ids_of(END)
        # xgrammar lets raw control characters into texts, which strict readers of JSON refuse.
        jsonschema.validate(json.loads(tokenizer.decode(ids[:-1]), strict=False), SCHEMA)


def test_without_xgrammar_the_error_names_the_extra(monkeypatch, tokenizer):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(UserError, match=r"pip install 'agentloop\[grammar\]'"):
        GrammarCompiler(tokenizer, len(tokenizer))
