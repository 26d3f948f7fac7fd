"""The warm-up of the tiny run shows guesses and programs for questions of the package."""

import random

import pytest

from agentloop.recipes.reasoning_gym.tiny_task import right_program, trace

QUESTIONS = [
    "State the final answer to the following arithmetic problem: 36 - 22 =",
    "State the final answer to the following arithmetic problem: 18 + 46 =",
    "Solve the following multiplication: 42 * 25. Give only the result as your final answer.",
]
ROWS = [{"prompt": [{"role": "user", "content": question}]} for question in QUESTIONS]


@pytest.mark.parametrize(("question", "noun"), zip(QUESTIONS, ("difference", "sum", "product"), strict=True))
def test_the_question_names_its_operation(question, noun):
    assert right_program(question).noun == noun


def test_traces_guess_or_copy_the_output_of_a_program():
    rng = random.Random(0)
    traces = [trace(rng, ROWS) for _ in range(200)]
    assert 20 < sum(len(messages) == 2 for messages in traces) < 60
    for question, call, output, answer in (messages for messages in traces if len(messages) == 4):
        assert question["content"] in QUESTIONS
        code = call["tool_calls"][0]["function"]["arguments"]["code"]
        assert str(eval(code.removeprefix("print(").removesuffix(")"))) == output["content"]
        assert answer["content"] == f"<answer>{output['content']}</answer>"


def test_half_of_the_programs_answer_the_question():
    rng = random.Random(0)
    right = [
        messages[1]["reasoning_content"] == f"I need the {right_program(messages[0]['content']).noun}."
        for messages in (trace(rng, ROWS) for _ in range(1000))
        if len(messages) == 4
    ]
    assert 0.44 < sum(right) / len(right) < 0.56
