"""A recipe folder with conversations, preference pairs and a model."""

import json

import pytest

CONVERSATIONS = [
    {
        "messages": [
            {"role": "user", "content": f"What is {a} plus {b}?"},
            {"role": "assistant", "content": f"It is {a + b}."},
        ]
    }
    for a in range(4)
    for b in range(3)
]
PAIRS = [
    {"prompt": f"What is {a} plus {b}?", "chosen": f"It is {a + b}.", "rejected": "I do not know the answer."}
    for a in range(4)
    for b in range(3)
]
CONFIG = """
model: ./model
data: {train: conversations.jsonl, eval: conversations.jsonl, eval_limit: 5}
batch_size: 4
learner: {lr: 1e-2, device: cpu, token_budget: 256}
run: {steps: 4, save_every: 2, loggers: []}
"""


@pytest.fixture
def answers(tmp_path, sums_model):
    """A fresh recipe folder for one test."""
    folder = tmp_path / "answers"
    folder.mkdir()
    (folder / "model").symlink_to(sums_model)
    (folder / "conversations.jsonl").write_text("\n".join(map(json.dumps, CONVERSATIONS)))
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    (folder / "sft.yaml").write_text(CONFIG)
    (folder / "dpo.yaml").write_text(CONFIG.replace("conversations.jsonl", "pairs.jsonl"))
    return folder
