"""Create the model of ninety million parameters, and train it on the format.

    python -m agentloop.recipes.chain.warmup [FOLDER] [--device cuda] [--updates 400]

As in `tiny`, the operations of half of the traces are random instead of those of the question, and some traces guess a
number without the tool.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from agentloop.recipes.chain.task import FIRST, SECOND, draw_numbers, question
from agentloop.recipes.tiny.fine_tuning import OnUpdate, fine_tune, report_updates, size_of
from agentloop.recipes.tiny.model import build_model
from agentloop.recipes.tiny.task import Operation
from agentloop.recipes.tiny.traces import GUESS_SHARE, LISTENING_SHARE, TOOL_NAME, tool_text
from agentloop.recipes.tiny.warmup import tool_schemas
from agentloop.types.messages import Message, ToolCall

MODEL = Path(__file__).parent / "data" / "model"

SIZE: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 2560,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "initializer_range": 0.02,
}
UPDATES = 400
LEARNING_RATE = 5e-4


def conversation(rng: random.Random) -> list[Message]:
    """Draw a synthetic episode without held-out numbers."""
    first, second = rng.choice(FIRST), rng.choice(SECOND)
    a, b, c = draw_numbers(rng, held_out=False)
    prompt: Message = {"role": "user", "content": question(first, second, a, b, c)}
    if rng.random() < GUESS_SHARE:
        return [prompt, _says(rng.randrange(10 ** rng.randint(1, 5)))]
    if rng.random() >= LISTENING_SHARE:
        first, second = rng.choice(FIRST), rng.choice(SECOND)
    result = first.compute(a, b)
    final = second.compute(result, c)
    return [prompt, *_step("First", first, a, b, 0), *_step("Then", second, result, c, 1), _says(final)]


def _step(when: str, operation: Operation, a: int, b: int, number: int) -> list[Message]:
    """Return a call and its answer."""
    call = ToolCall(TOOL_NAME, {"code": operation.code.format(a=a, b=b)}, id=f"call_{number}")
    turn: Message = {"role": "assistant", "content": "", "reasoning_content": f"{when} the {operation.noun}."}
    turn["tool_calls"] = [call.as_dict()]
    return [turn, {"role": "tool", "content": tool_text(operation.compute(a, b))}]


def _says(number: int) -> Message:
    return {"role": "assistant", "content": f"The answer is {number}."}


def warm_up(
    folder: Path,
    *,
    size: Mapping[str, Any] = SIZE,
    seed: int = 0,
    num_updates: int = UPDATES,
    traces_per_update: int = 128,
    device: Literal["cpu", "cuda"] = "cpu",
    on_update: OnUpdate | None = None,
) -> Path:
    """Train a new model on synthetic traces and write it, in bfloat16, to `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        return fine_tune(
            build_model(Path(scratch) / "start", seed, size),
            folder,
            conversation,
            schemas=tool_schemas(),
            num_updates=num_updates,
            lr=LEARNING_RATE,
            traces_per_update=traces_per_update,
            shown_traces=traces_per_update // 8,
            seed=seed,
            device=device,
            on_update=on_update,
        )


def main() -> None:
    """Run the warm-up with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--updates", type=int, default=UPDATES)
    arguments = parser.parse_args()
    warm_up(arguments.folder, device=arguments.device, num_updates=arguments.updates, on_update=report_updates())
    print(size_of(arguments.folder))


if __name__ == "__main__":
    main()
