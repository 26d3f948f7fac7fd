"""`MemoryTransport`: brings new weights to vLLM through memory that its workers map."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import EngineDead
from agentloop.engines.vllm.adapters import are_adapters, check_shapes
from agentloop.engines.vllm.core import unless_dead
from agentloop.errors import EngineError
from agentloop.weights.checkpoint_names import CheckpointNames
from agentloop.weights.files import check_names
from agentloop.weights.shelf import CannotMap, Overwritten, SharedWeights, WeightShelf
from agentloop.weights.wire import to_json

if TYPE_CHECKING:
    from agentloop.weights.handle import WeightHandle

_log = logging.getLogger(__name__)
Shapes = dict[str, tuple[int, ...]]


class MemoryTransport:
    """`prepare` weights while turns are sampled, and `load` them while none are.

    `model` is the folder of the model. With `adapters`, a rank, it takes adapters of that rank instead of weights.
    """

    def __init__(self, model: str, adapters: int | None) -> None:
        self._model = model
        self._adapters = adapters
        self._names: CheckpointNames | None = None
        self._shelf, self._host_shelf = WeightShelf(), WeightShelf(on_host=True)
        self.maps_devices = True
        """Whether vLLM's workers can map the GPU memory that has the weights."""

    async def prepare(self, llm: Any, weights: WeightHandle, shapes: Shapes | None) -> None:
        """Fill the shelf, unless the weights are on one already, and let the workers map it.

        `shapes` are those of the checkpoint that vLLM has loaded; None leaves the weights unchecked. Raises
        `EngineError` for a missing or unknown weight or a wrong shape, and `CannotMap` if the workers cannot map
        `SharedWeights` of another process.
        """
        shared = await asyncio.to_thread(self._shared, weights, shapes)
        await self._open(llm, shared)

    async def load(self, llm: Any) -> str:
        """Let the workers load the prepared weights, and return how: the result of `WeightReceiver.agentloop_load`.

        Raises `EngineError`, also `Overwritten`; the weights of vLLM are then half written.
        """
        try:
            ways: list[str] = await unless_dead(llm, llm.collective_rpc("agentloop_load"))
        except EngineDead:
            raise
        except Exception as error:  # the boundary to vLLM
            raise EngineError(f"vLLM could not load new weights: {type(error).__name__}: {error}") from error
        if "overwritten" in ways:
            raise Overwritten("new weights were overwritten while vLLM loaded them")
        return ways[0]

    def _shared(self, weights: WeightHandle, shapes: Shapes | None) -> SharedWeights:
        shared = weights.shared(self._shelf)
        self._check(shared, shapes)
        return shared

    def _check(self, shared: SharedWeights, shapes: Shapes | None) -> None:
        """Raise `EngineError` if the weights are not those of the model, or of adapters if the engine takes these."""
        if are_adapters(shared.shapes) != (self._adapters is not None):
            takes = "merged weights" if self._adapters is None else "adapters"
            raise EngineError(f"the engine takes {takes}: its option adapters must match learner.lora.publish")
        if shapes is None:
            return
        if self._adapters is not None:
            check_shapes(shared.shapes, shapes)
        else:
            check_names(self._checkpoint_shapes(shared), shapes)

    def _checkpoint_shapes(self, shared: SharedWeights) -> Shapes:
        if self._names is None:
            self._names = CheckpointNames(self._model)
        return self._names.shapes(shared.shapes)

    async def _open(self, llm: Any, shared: SharedWeights) -> None:
        """Let the workers map the weights, or a copy in host memory if they cannot map the GPU memory."""
        if self.maps_devices or not shared.is_of_this_process:
            problem = await _try_open(llm, shared)
            if not problem:
                return
            if not shared.is_of_this_process:
                raise CannotMap(problem)
            _log.warning("New weights are sent through host memory from now on: %s.", problem)
            self.maps_devices = False
        if problem := await _try_open(llm, await asyncio.to_thread(self._host_shelf.put, shared.tensors())):
            raise CannotMap(problem)


async def _try_open(llm: Any, shared: SharedWeights) -> str:
    """Return why the workers cannot map the weights; '' if they can."""
    try:
        asked = llm.collective_rpc("agentloop_open", args=(to_json(shared),))
        problems: list[str] = await unless_dead(llm, asked)
    except EngineDead:
        raise
    except Exception as error:  # the boundary to vLLM
        raise EngineError(f"vLLM: {type(error).__name__}: {error}") from error
    return next(filter(None, problems), "")
