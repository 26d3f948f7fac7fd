"""A run small enough for a test: sums, a real tool, a scripted model, and a learner that really learns."""

import random
import re
from functools import cache

from agentloop.recipes.tiny.tokenizer import build_tokenizer


def tasks(num):
    rng = random.Random(0)
    for _ in range(num):
        a, b = rng.randrange(100), rng.randrange(100)
        yield {"prompt": f"What is {a} plus {b}?", "answer": a + b}


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def broken_reward(trajectory, task):
    raise ZeroDivisionError("division by zero")


@cache
def tokenizer():
    return build_tokenizer()


def script(trajectory_id, turn, prompt, params):
    """Calls the tool and repeats its result, or guesses; the episode's name decides which."""
    chance = random.Random(f"{trajectory_id} {turn}")
    text = tokenizer().decode(list(prompt))
    if turn > 0:
        said = text.rpartition("<tool_response>")[2]
        reply = re.search(r"\d+", said)[0] if chance.random() < 0.8 else "I do not know"
    else:
        a, b = re.findall(r"\d+", text.rpartition("<|im_start|>user")[2])[:2]
        call = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
        reply = call if chance.random() < 0.6 else str(chance.randrange(200))
    return tokenizer()(reply + "<|im_end|>", add_special_tokens=False)["input_ids"]
