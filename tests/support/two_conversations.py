"""An agent program with two conversations of two turns each, and a scripted model that answers with its prompt's end.

Beside the file: `log` gets a line for every turn that is sampled; as long as `gate` exists, second turns wait.
"""

import asyncio
from functools import cache
from pathlib import Path

import httpx

from agentloop.recipes.tiny.tokenizer import build_tokenizer

FOLDER = Path(__file__).parent


@cache
def tokenizer():
    return build_tokenizer()


def script(trajectory_id, turn, prompt, params):
    with (FOLDER / "log").open("a") as log:
        log.write(f"{trajectory_id} {len(prompt)}\n")
    question = tokenizer().decode(list(prompt)).rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    return tokenizer()(f"{question}<|im_end|>", add_special_tokens=False)["input_ids"]


async def solve(task, model):
    headers = {"Authorization": f"Bearer {model.api_key}"}
    async with httpx.AsyncClient(base_url=model.base_url, headers=headers, timeout=600) as client:

        async def ask(messages):
            answer = await client.post("chat/completions", json={"model": model.model, "messages": messages})
            return answer.raise_for_status().json()["choices"][0]["message"]

        conversations = []
        for number in (1, 2):
            messages = [{"role": "user", "content": f"{number} 1"}]
            conversations.append([*messages, await ask(messages), {"role": "user", "content": f"{number} 2"}])
        while (FOLDER / "gate").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return " ".join([(await ask(messages))["content"] for messages in conversations])
