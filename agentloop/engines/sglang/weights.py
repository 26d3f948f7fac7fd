"""Transports of new weights to an SGLang server: memory that it maps, or a file."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentloop.engines.base import EngineDead
from agentloop.engines.sglang.client import SglangClient
from agentloop.engines.sglang.worker import LOADER, Answer, answers_in, order
from agentloop.errors import EngineError
from agentloop.weights.files import check_names, write_weights
from agentloop.weights.shelf import CannotMap, Overwritten, SharedWeights, WeightShelf

if TYPE_CHECKING:
    from agentloop.weights.checkpoint_names import CheckpointNames
    from agentloop.weights.handle import WeightHandle

_log = logging.getLogger(__name__)
LOADED = ("copies", "loader")
Shapes = dict[str, tuple[int, ...]]


class HalfLoaded(EngineError):
    """The update failed half way: the server has weights of mixed versions."""


class NotThisTransport(EngineError):
    """The server cannot take `weights` by this transport, and has changed nothing."""

    def __init__(self, message: str, weights: SharedWeights) -> None:
        super().__init__(message)
        self.weights = weights


class Transport(Protocol):
    """`prepare` weights while turns are sampled, `load` the result while none are, then `forget` it."""

    async def prepare(self, weights: WeightHandle) -> Any:
        """Prepare weights. Raises `EngineError` for a missing, unknown or misshapen weight."""

    async def load(self, client: SglangClient, prepared: Any, version: int) -> str:
        """Load weights and return how.

        Raises `NotThisTransport` or `CannotMap` if nothing has changed, `HalfLoaded` or `Overwritten` otherwise.
        """
        ...

    async def forget(self, prepared: Any) -> None:
        """Discard prepared weights."""


class MemoryTransport:
    """A shelf whose memory SGLang's schedulers map, so that on GPUs no weight passes through the host.

    The server must run on this host and be started with `LOADER`.
    """

    def __init__(self, shapes: Shapes | None, ranks: int) -> None:
        self._shapes = shapes
        self._ranks = ranks
        self._shelf, self._host_shelf = WeightShelf(), WeightShelf(on_host=True)
        self._maps_devices = True
        """Whether the schedulers can map the memory of the GPU that has the weights."""

    async def prepare(self, weights: WeightHandle) -> SharedWeights:
        """Fill the shelf, unless the weights are on one already."""
        shared = await asyncio.to_thread(weights.shared, self._shelf)
        if self._shapes is not None:
            check_names(shared.shapes, self._shapes)
        return shared

    async def load(self, client: SglangClient, shared: SharedWeights, version: int) -> str:
        if self._maps_devices or not shared.is_of_this_process:
            answer = await self._ask(client, shared, version)
            if answer.way == "unfit":
                raise NotThisTransport(answer.message, shared)
            if answer.way != "unmapped":
                return answer.way
            if not shared.is_of_this_process:
                raise CannotMap(answer.message)
            _log.warning("New weights go through the memory of the host from now on: %s.", answer.message)
            self._maps_devices = False
        answer = await self._ask(client, await asyncio.to_thread(self._host_shelf.put, shared.tensors()), version)
        if answer.way not in LOADED:
            raise NotThisTransport(answer.message, shared)
        return answer.way

    async def _ask(self, client: SglangClient, shared: SharedWeights, version: int) -> Answer:
        # Like the shelf's memory on the host, this file has no name and ends with this process.
        descriptor = os.memfd_create("agentloop-answers")
        try:
            path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
            try:
                await client.load_tensors([order(shared, path)] * self._ranks, LOADER, version)
            except EngineDead:
                raise
            except EngineError as error:
                raise HalfLoaded(str(error)) from error
            answers = await asyncio.to_thread(lambda: answers_in(path.read_text()))
        finally:
            os.close(descriptor)
        assert len(answers) == self._ranks, "every scheduler answers"
        return _as_one(answers)

    async def forget(self, shared: SharedWeights) -> None:
        """Keep the shelf, which stays mapped for the next update."""


class FileTransport:
    """A safetensors file in a folder that both processes see.

    `names` turns weights of transformers into those of the checkpoint, which SGLang loads; None if they are the same.
    """

    def __init__(self, shapes: Shapes | None, model: str, folder: Path, names: CheckpointNames | None = None) -> None:
        self._shapes = shapes
        self._model = Path(model).name
        self._folder = folder
        self._names = names

    async def prepare(self, weights: WeightHandle) -> Path:
        return await asyncio.to_thread(self._write, weights)

    def _write(self, weights: WeightHandle) -> Path:
        """Write a folder with one file. It has the model's name, which the server reports from then on."""
        folder = Path(tempfile.mkdtemp(prefix="agentloop-weights-", dir=self._folder)) / self._model
        try:
            folder.mkdir()
            tensors = weights.tensors()
            if self._names is not None:
                tensors = self._names.converted(tensors)
            write_weights(tensors, folder / "model.safetensors", self._shapes)
        except BaseException:
            shutil.rmtree(folder.parent)
            raise
        return folder

    async def load(self, client: SglangClient, folder: Path, version: int) -> str:
        try:
            await client.load_folder(folder, version)
        except EngineDead:
            raise
        except EngineError as error:
            raise HalfLoaded(str(error)) from error
        return "file"

    async def forget(self, folder: Path) -> None:
        await asyncio.to_thread(shutil.rmtree, folder.parent)


def _as_one(answers: list[Answer]) -> Answer:
    """Return the answer of all schedulers of a server. Raises `HalfLoaded` if they disagree."""
    bad = next((answer for answer in answers if answer.way not in LOADED), answers[0])
    alike = all((answer.way in LOADED) == (bad.way in LOADED) for answer in answers)
    if bad.way == "overwritten":
        raise Overwritten("new weights were overwritten while SGLang loaded them")
    if bad.way == "failed" or not alike:
        raise HalfLoaded(f"SGLang could not load new weights: {bad.message}")
    return bad
