"""What runs inside of SGLang's scheduler processes: taking new weights out of memory that the engine's process shares.

SGLang calls `load` as one of its custom weight loaders (`--custom-weight-loader`), at `/update_weights_from_tensor`.
"""

from __future__ import annotations

import json
import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agentloop.weights.copies import copies_of, is_as_loaded
from agentloop.weights.shelf import CannotMap, MappedWeights, Overwritten, SharedWeights

if TYPE_CHECKING:
    import torch

LOADER = f"{__name__}.load"


class Answer(NamedTuple):
    """Of one scheduler."""

    way: str
    """`copies` or `loader`: the weights are there. `unmapped` or `unfit`: nothing has changed. `overwritten` or
    `failed`: nobody knows what is there."""
    message: str = ""


def order(shared: SharedWeights, answers: Path) -> str:
    """What SGLang hands to `load` in a scheduler, in base64. Each adds a line to the file `answers`: SGLang tells
    nobody what a loader says, and ends when it raises."""
    import torch

    text = b64encode(pickle.dumps((shared, str(answers)))).decode()
    # SGLang unpickles tensors and little else; a name is as long as it is.
    return b64encode(pickle.dumps([(text, torch.empty(0))])).decode()


def answers_in(text: str) -> list[Answer]:
    """What the schedulers wrote."""
    return [Answer(*json.loads(line)) for line in text.splitlines()]


def load(model: torch.nn.Module, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """SGLang's side of `order`."""
    ((text, _),) = named_tensors
    shared, path = pickle.loads(b64decode(text))
    try:
        answer = _loader.load(model, shared)
    except Exception as error:  # the boundary to SGLang, whose scheduler an exception would end
        answer = Answer("failed", f"{type(error).__name__}: {error}")
    with open(path, "a") as file:
        file.write(json.dumps(answer) + "\n")


class _Loader:
    """Keeps the mapping, and the copies that loading comes to, from update to update."""

    def __init__(self) -> None:
        self._mapped: MappedWeights | None = None
        self._copies: Callable[[], None] | None = None

    def load(self, model: torch.nn.Module, shared: SharedWeights) -> Answer:
        import torch

        device = next(model.parameters()).device
        if not is_as_loaded(model):
            return Answer("unfit", "SGLang makes something else of the weights when it has loaded them")
        if self._mapped is None or not self._mapped.again(shared):
            self._mapped = self._copies = None
            try:
                self._mapped = shared.open(device)
            except CannotMap as error:
                return Answer("unmapped", str(error))
        _synchronize(device)  # a batch of requests that have ended may be under way
        with torch.inference_mode():
            if self._copies is not None:
                self._copies()
                way = "copies"
            else:
                self._copies = copies_of(model, self._mapped)
                way = "loader"
        _synchronize(device)  # the shelf may be filled again as soon as this returns
        try:
            self._mapped.check()
        except Overwritten as error:
            return Answer("overwritten", str(error))
        return Answer(way)


def _synchronize(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


_loader = _Loader()
