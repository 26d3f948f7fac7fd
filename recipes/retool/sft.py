"""ReTool's first stage: supervised training on conversations with calls, on the assistant's tokens only.

    python -m agentloop.recipes.retool.sft MODEL DATA.jsonl FOLDER [--paper] [--epochs 6] [--batch-size 32] [--lr 1e-5]

Each line of DATA has a conversation as `messages`, with --paper in the paper's format. FOLDER gets the model. Training
uses one process and one device.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.envs.datasets.dataset import load_dataset
from agentloop.errors import UserError
from agentloop.recipes.retool.paper import FORMAT
from agentloop.recipes.retool.paper import to_trajectory as paper_trajectory
from agentloop.recipes.tiny.traces import to_trajectory

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory


def train(
    model: Path,
    data: str,
    folder: Path,
    *,
    paper: bool = False,
    epochs: int = 6,
    batch_size: int = 32,
    lr: float = 1e-5,
    max_tokens: int = 16384,
    seed: int = 0,
    on_update: Callable[[int, int, float], None] | None = None,
    **learner: Any,
) -> Path:
    """Train on all conversations of at most `max_tokens` tokens. `learner` has further settings of `LearnerConfig`.

    Raises `UserError` if all conversations are longer.
    """
    from agentloop.config.learner import LearnerConfig
    from agentloop.rendering import renderer_for
    from agentloop.trainer.batch.train_batch import supervised_batch
    from agentloop.trainer.run.learners import create

    conversations = [row["messages"] for row in load_dataset(data)]
    if paper:
        in_one_turn = renderer_for(model, inline=FORMAT)
        traces = [paper_trajectory(messages, in_one_turn) for messages in conversations]
    else:
        renderer, tools = renderer_for(model), _schemas()
        traces = [to_trajectory(messages, renderer, tools) for messages in conversations]
    kept = [trace for trace in traces if len(trace) <= max_tokens]
    if not kept:
        raise UserError(f"None of the {len(traces)} conversations in {data} has {max_tokens} tokens or fewer.")
    num_updates = epochs * -(-len(kept) // batch_size)
    settings: dict[str, Any] = {
        "lr_schedule": "cosine",
        "warmup_updates": num_updates // 10,
        "total_updates": num_updates,
        "token_budget": max_tokens,
        **learner,
    }
    trainer = create(LearnerConfig(model=str(model), loss="sft", lr=lr, seed=seed, **settings))
    for update, batch in enumerate(_batches(kept, epochs, batch_size, seed), 1):
        metrics = trainer.step(supervised_batch(batch))
        if on_update is not None:
            on_update(update, num_updates, metrics["loss"])
    trainer.save_hf(folder)
    return folder


def _schemas() -> Sequence[dict[str, Any]]:
    from agentloop.tools.code_interpreter import CodeInterpreter
    from agentloop.tools.toolset import Toolset

    return Toolset([CodeInterpreter()]).schemas


def _batches(traces: Sequence[Trajectory], epochs: int, batch_size: int, seed: int) -> Iterator[Sequence[Trajectory]]:
    """Yield batches of every trace once per epoch, in a new order each time."""
    rng = random.Random(seed)
    for _ in range(epochs):
        order = rng.sample(traces, len(traces))
        for start in range(0, len(order), batch_size):
            yield order[start : start + batch_size]


def main() -> None:
    """Train with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--max-tokens", type=int, default=16384)
    given = vars(parser.parse_args())
    train(**given, on_update=lambda done, total, loss: print(f"{done}/{total} updates, loss {loss:.4f}", flush=True))


if __name__ == "__main__":
    main()
