"""The grammar of constrained turns in each format: what it allows, the format reads, and the schemas accept."""

import json
import random
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from agentloop.errors import UserError
from agentloop.grammars.compiler import GrammarCompiler
from agentloop.rendering.formats import FORMATS, call_format
from agentloop.rendering.formats.turn_form import CONSTRAINED, TurnForm, turn_grammar
from agentloop.rendering.parsing import TurnParser
from agentloop.types.grammar import Grammar
from agentloop.types.messages import ToolCall

END = "<|im_end|>"
ARGUMENTS = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "two words"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOLS = (
    {"type": "function", "function": {"name": "weather", "parameters": ARGUMENTS}},
    {"type": "function", "function": {"name": "forecast", "parameters": ARGUMENTS}},
)
STRICT = frozenset({"weather", "forecast"})
_DOCS = Path(__file__).parents[4] / "docs" / "reference" / "gateway.md"
REFUSED = sorted(set(FORMATS) - set(CONSTRAINED))


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GrammarCompiler(tokenizer, len(tokenizer))


def grammar_of(name, form, tools, ids_of):
    text = turn_grammar(form, call_format(name), tools, starts_in_thinking=False)
    return Grammar(text, tuple(ids_of(END)))


def walks(compiler, grammar, tokenizer, *, count, seed=0):
    """Yield texts of random tokens that the grammar allows, which ended by themselves."""
    choose = random.Random(seed)
    found = 0
    for _ in range(40 * count):
        state, ids = compiler.begin(grammar), []
        while len(ids) < 400 and (bits := state.allowed()) is not None:
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[: len(tokenizer)])
            if len(allowed) > 200:
                break  # free text, which rarely ends
            ids.append(int(choose.choice(allowed)))
            assert state.accept(ids[-1])
            if ids[-1] in grammar.stop_token_ids:
                found += 1
                yield tokenizer.decode(ids[:-1])
                break
        if found == count:
            return
    raise AssertionError(f"only {found} turns ended")


def parse(name, text, *, complete=True):
    return TurnParser(call_format(name)).parse(text, complete=complete, tools=TOOLS)


@pytest.mark.parametrize("name", CONSTRAINED)
def test_a_turn_that_must_call_calls_with_valid_arguments(name, compiler, tokenizer, ids_of):
    grammar = grammar_of(name, TurnForm(must_call=True, strict=STRICT), TOOLS, ids_of)
    names = set()
    for text in walks(compiler, grammar, tokenizer, count=16):
        turn = parse(name, text)
        assert turn.calls
        for call in turn.calls:
            assert isinstance(call, ToolCall), (text, call)
            jsonschema.validate(call.arguments, ARGUMENTS)
            names.add(call.name)
    assert names == STRICT


@pytest.mark.parametrize("name", CONSTRAINED)
def test_a_tool_may_be_demanded_by_name(name, compiler, tokenizer, ids_of):
    form = TurnForm(must_call=True, strict=STRICT, callable=frozenset({"forecast"}))
    grammar = grammar_of(name, form, TOOLS, ids_of)
    for text in walks(compiler, grammar, tokenizer, count=3):
        assert {call.name for call in parse(name, text).calls} == {"forecast"}


@pytest.mark.parametrize("name", CONSTRAINED)
def test_a_turn_answers_by_the_schema_or_calls(name, compiler, tokenizer, ids_of):
    grammar = grammar_of(name, TurnForm(answer=ANSWER, strict=STRICT), TOOLS, ids_of)
    kinds = set()
    for text in walks(compiler, grammar, tokenizer, count=20):
        turn = parse(name, text)
        kinds.add(bool(turn.calls))
        if not turn.calls:
            jsonschema.validate(json.loads(turn.content), ANSWER)
    assert kinds == {True, False}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_answers_by_a_schema_without_tools(name, compiler, tokenizer, ids_of):
    grammar = grammar_of(name, TurnForm(answer=ANSWER), (), ids_of)
    for text in walks(compiler, grammar, tokenizer, count=3):
        jsonschema.validate(json.loads(parse(name, text, complete=False).content), ANSWER)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("form", [TurnForm(must_call=True), TurnForm(strict=STRICT), TurnForm(answer=ANSWER)])
def test_a_format_without_a_grammar_of_calls_is_refused_by_name(name, form):
    with pytest.raises(UserError, match=f"Calls in the format {name} cannot be constrained; .*qwen3_coder.* can"):
        turn_grammar(form, call_format(name), TOOLS, starts_in_thinking=False)


@pytest.mark.parametrize("name", CONSTRAINED)
def test_text_around_strict_calls_is_free(name, compiler, tokenizer, ids_of):
    """With strict tools alone, a turn may be any text."""
    grammar = grammar_of(name, TurnForm(strict=STRICT), TOOLS, ids_of)
    text = "<|channel|>final<|message|>It is warm." if name == "harmony" else "It is warm."
    compiler.masks(grammar, ids_of(text + END))


def test_the_table_of_the_docs_is_true():
    found = re.findall(r"^\| ([\w, ]+) \| (as sampled|when the \w+ has ended) \| (yes|no) \|$", _DOCS.read_text(), re.M)
    rows = {name: (when, constrained) for names, when, constrained in found for name in names.split(", ")}
    for name in FORMATS:
        written = call_format(name)
        is_stepwise = written.begin is not None or written.reads_in_steps
        when = "call" if written.read is not None else "turn"
        expected = "as sampled" if is_stepwise else f"when the {when} has ended"
        assert rows.pop(name) == (expected, "yes" if name in CONSTRAINED else "no")
    assert rows == {}
