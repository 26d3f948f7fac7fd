"""Texts of vLLM's own tests of its tool parsers are read as vLLM reads them, or differ for a stated reason.

The data are inputs and results, recorded while the tests of vLLM 0.32.0 passed: github.com/vllm-project/vllm, tag
v0.32.0 (commit 5df63a720), below tests/tool_parsers, tests/parser/engine and tests/reasoning. Licence: Apache-2.0,
Copyright contributors to the vLLM project. The paths are in vllm_cases.json.
"""

import json
from pathlib import Path

import pytest

from agentloop.rendering.formats import FORMATS, call_format
from agentloop.rendering.parsing import TurnParser
from agentloop.types.messages import ToolCall

CASES = json.loads(Path(__file__).with_name("vllm_cases.json").read_text("utf-8"))["cases"]
IMPLICIT_END = "<think>I need to read the file.\n\n"
"""Of tests/reasoning/test_qwen3_reasoning_parser.py, case tool_call_with_think_no_end."""
CAT = "<tool_call>\n<function=bash>\n<parameter=command>\ncat /etc/hosts\n</parameter>\n</function>\n</tool_call>"


def calls_of(turn):
    """Return names and arguments; None for the arguments of a refused call."""
    return [[call.name, call.arguments if isinstance(call, ToolCall) else None] for call in turn.calls]


@pytest.mark.parametrize("case", CASES, ids=[f"{each['format']}-{each['test'].rpartition(':')[2]}" for each in CASES])
def test_calls_and_content_are_those_of_vllm_or_differ_for_a_reason(case):
    turn = TurnParser(call_format(case["format"])).parse(case["text"], tools=case["tools"])
    assert calls_of(turn) == case.get("ours", case["calls"])
    assert turn.content == case.get("ours_content", case["content"])


def test_every_difference_is_one_and_has_a_reason():
    differing = [case for case in CASES if "differs" in case]
    assert all(case["differs"] for case in differing)
    assert all(
        case["ours"] != case["calls"] or case.get("ours_content", case["content"]) != case["content"]
        for case in differing
    )
    assert not [case["test"] for case in CASES if "differs" not in case and ("ours" in case or "ours_content" in case)]
    assert {case["format"] for case in CASES} <= set(FORMATS)


def test_execute_ends_thinking_at_a_call_as_vllms_parser_of_qwen3_does():
    parser = TurnParser(call_format("qwen3_coder"), calls_in_thinking="execute")
    turn = parser.parse(IMPLICIT_END + CAT)
    assert turn.reasoning == IMPLICIT_END.removeprefix("<think>").strip()
    assert calls_of(turn) == [["bash", {"command": "cat /etc/hosts"}]]
