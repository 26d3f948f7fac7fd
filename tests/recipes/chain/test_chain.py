import contextlib
import io
import random
import re

from agentloop.envs.datasets.dataset import load_dataset
from agentloop.recipes.chain.task import FIRST, SECOND, held_out_rows, train_rows
from agentloop.recipes.chain.traces import conversation


def numbers(row):
    return tuple(map(int, re.findall(r"\d+", row["prompt"][0]["content"])))


def output_of(program):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    return printed.getvalue().strip()


def test_only_the_two_right_programs_print_the_answer():
    for row in load_dataset("agentloop.recipes.chain.task:train_rows", options={"num_rows": 60}):
        a, b, c = numbers(row)
        results = {}
        for first in FIRST:
            between = output_of(first.code.format(a=a, b=b))
            for second in SECOND:
                results[first.noun, second.noun] = output_of(second.code.format(a=between, b=c))
        assert results[tuple(row["operations"])] == row["answer"]
        assert len(set(results.values())) == 15


def test_held_out_pairs_are_not_in_the_training_data():
    trained = {numbers(row)[:2] for row in train_rows(3000)}
    assert not trained & {numbers(row)[:2] for row in held_out_rows(300)}
    assert len({tuple(row["operations"]) for row in held_out_rows(15)}) == 15


def test_traces_are_right_about_their_programs_but_not_always_about_the_question():
    rng = random.Random(0)
    traces = [conversation(rng) for _ in range(200)]
    called = [trace for trace in traces if len(trace) > 2]
    for trace in called:
        _, first, seen, second, final, answer = trace
        for turn, tool in ((first, seen), (second, final)):
            assert output_of(turn["tool_calls"][0]["function"]["arguments"]["code"]) == tool["content"]
        assert answer["content"] == f"The answer is {final['content']}."
    listened = sum(trace[1]["reasoning_content"].split(" the ")[1][:-1] in trace[0]["content"] for trace in called)
    assert 0.5 < listened / len(called) < 0.8
    assert 0.2 < 1 - len(called) / len(traces) < 0.4
