"""Code in SGLang's scheduler processes: load new weights from memory that the engine's process shares.

SGLang calls `load` as one of its custom weight loaders (`--custom-weight-loader`), at `/update_weights_from_tensor`.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agentloop.weights.copies import copies_of, is_as_loaded
from agentloop.weights.shelf import CannotMap, MappedWeights, Overwritten, SharedWeights
from agentloop.weights.wire import from_json, to_json

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
LOADER = f"{__name__}.load"


class Answer(NamedTuple):
    """Answer of one scheduler."""

    way: str
    """`copies` or `loader`: the weights are loaded. `unmapped` or `unfit`: nothing has changed. `overwritten` or
    `failed`: the weights have mixed versions."""
    message: str = ""


def order(shared: SharedWeights, answers: Path) -> str:
    """Return the argument that SGLang passes to `load` in each scheduler, in base64.

    Each scheduler adds a line to the file `answers`: SGLang does not return a loader's result, and ends if it raises.
    """
    import torch

    text = json.dumps({"weights": to_json(shared), "answers": str(answers)})
    # SGLang's route takes pickled tensors with names, and a name may have any length.
    return b64encode(pickle.dumps([(text, torch.empty(0))])).decode()


def answers_in(text: str) -> list[Answer]:
    """Parse the answers that the schedulers wrote."""
    return [Answer(*json.loads(line)) for line in text.splitlines()]


def load(model: torch.nn.Module, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Load weights in a scheduler; `named_tensors` come from `order`, and anything else is refused and logged."""
    try:
        ((text, _),) = named_tensors
        shared, path = _ordered(text)
    except ValueError as error:
        _log.error("New weights are refused: %s.", error)
        return
    try:
        answer = _loader.load(model, shared)
    except Exception as error:  # the boundary to SGLang, whose scheduler an exception would end
        answer = Answer("failed", f"{type(error).__name__}: {error}")
    with open(path, "a") as file:
        file.write(json.dumps(answer) + "\n")


def _ordered(text: str) -> tuple[SharedWeights, str]:
    """Read an order, which is JSON. Raises `ValueError`."""
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("weights"), str):
        raise ValueError("this is not a request of the sglang engine")
    path = str(data.get("answers"))
    if re.fullmatch(r"/proc/\d+/fd/\d+", path) is None:
        raise ValueError(f"{path[:60]!r} is not a file for answers")
    return from_json(data["weights"]), path


class _Loader:
    """Load weights, and keep the mapping and the recorded copies from update to update."""

    def __init__(self) -> None:
        self._mapped: MappedWeights | None = None
        self._copies: Callable[[], None] | None = None

    def load(self, model: torch.nn.Module, shared: SharedWeights) -> Answer:
        import torch

        device = next(model.parameters()).device
        if not is_as_loaded(model):
            return Answer("unfit", "SGLang converts the weights after it has loaded them")
        if self._mapped is None or not self._mapped.again(shared):
            self._mapped = self._copies = None
            try:
                self._mapped = shared.open(device)
            except CannotMap as error:
                return Answer("unmapped", str(error))
        _synchronize(device)  # a batch of ended requests may still be running
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
