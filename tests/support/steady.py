"""A scripted model that knows nothing but its prompt and its seed, so that any worker says the same.

Beside the file: `log` gets a line for every turn that is sampled; as long as `gate` is there, turns behind a tool's
answer wait; while `stuck` is there, they hold up the event loop.
"""

import asyncio
import os
import random
import re
import time
from functools import cache
from pathlib import Path

from agentloop.recipes.tiny.tokenizer import build_tokenizer

FOLDER = Path(__file__).parent


@cache
def tokenizer():
    return build_tokenizer()


def script(trajectory_id, turn, prompt, params):
    with (FOLDER / "log").open("a") as log:
        log.write(f"{trajectory_id} {len(prompt)}\n")
    text = tokenizer().decode(list(prompt)).rpartition("<|im_start|>user")[2]
    chance = random.Random(params.seed)
    if "<tool_response>" in text:
        while (FOLDER / "stuck").exists():
            time.sleep(0.05)
        reply = re.findall(r"\d+", text)[-1]
    else:
        if (FOLDER / "deadly").exists() and trajectory_id.startswith("bad"):
            os._exit(1)
        a, b = re.findall(r"\d+", text)[:2]
        call = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
        reply = call if chance.random() < 0.7 else str(chance.randrange(200))
    return tokenizer()(reply + "<|im_end|>", add_special_tokens=False)["input_ids"]


async def add(a: int, b: int) -> str:
    """Add two numbers."""
    while (FOLDER / "gate").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return str(a + b)
