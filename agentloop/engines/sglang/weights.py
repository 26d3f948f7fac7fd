"""How new weights get into an SGLang server: through memory that it maps, or through a file."""

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
    from agentloop.weights.handle import WeightHandle

_log = logging.getLogger(__name__)
LOADED = ("copies", "loader")
Shapes = dict[str, tuple[int, ...]]


class HalfLoaded(EngineError):
    """Nobody knows which of the weights are new."""


class NotThisWay(EngineError):
    """Nothing has changed; the server has to take `weights` in another way."""

    def __init__(self, message: str, weights: SharedWeights) -> None:
        super().__init__(message)
        self.weights = weights


class Way(Protocol):
    """`prepare` weights while turns are sampled, `load` what that gave while none are, and `forget` it."""

    async def prepare(self, weights: WeightHandle) -> Any:
        """Raises `EngineError` for a missing, unknown or misshapen weight."""

    async def load(self, client: SglangClient, prepared: Any, version: int) -> str:
        """Says how. Raises `HalfLoaded`, `NotThisWay`, `CannotMap` or `Overwritten`, which is half loaded, too."""
        ...

    async def forget(self, prepared: Any) -> None:
        """It may go."""


class ThroughMemory:
    """SGLang's schedulers map the memory of a shelf: on GPUs nothing passes through the host. For a server of this host
    that was started with `LOADER`."""

    def __init__(self, shapes: Shapes | None, ranks: int) -> None:
        self._shapes = shapes
        self._ranks = ranks
        self._shelf, self._host_shelf = WeightShelf(), WeightShelf(on_host=True)
        self._maps_devices = True
        """The schedulers can map the memory of the GPU that weights come from."""

    async def prepare(self, weights: WeightHandle) -> SharedWeights:
        """Fill the shelf; `SharedWeights` are on one already."""
        shared = await asyncio.to_thread(weights.shared, self._shelf)
        if self._shapes is not None:
            check_names(shared.shapes, self._shapes)
        return shared

    async def load(self, client: SglangClient, shared: SharedWeights, version: int) -> str:
        if self._maps_devices or not shared.is_of_this_process:
            answer = await self._ask(client, shared, version)
            if answer.way == "unfit":
                raise NotThisWay(answer.message, shared)
            if answer.way != "unmapped":
                return answer.way
            if not shared.is_of_this_process:
                raise CannotMap(answer.message)
            _log.warning("New weights go through the memory of the host from now on: %s.", answer.message)
            self._maps_devices = False
        answer = await self._ask(client, await asyncio.to_thread(self._host_shelf.put, shared.tensors()), version)
        if answer.way not in LOADED:
            raise NotThisWay(answer.message, shared)
        return answer.way

    async def _ask(self, client: SglangClient, shared: SharedWeights, version: int) -> Answer:
        # As the shelves' memory on the host, this file has no name: it is gone with this process.
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
        """The shelf stays, mapped, for the next ones."""


class ThroughFile:
    """A safetensors file in a folder that both processes see."""

    def __init__(self, shapes: Shapes | None, model: str, folder: Path) -> None:
        self._shapes = shapes
        self._model = Path(model).name
        self._folder = folder

    async def prepare(self, weights: WeightHandle) -> Path:
        return await asyncio.to_thread(self._write, weights)

    def _write(self, weights: WeightHandle) -> Path:
        """A folder with one file. It has the name of the model, so that the server still says which one it has."""
        folder = Path(tempfile.mkdtemp(prefix="agentloop-weights-", dir=self._folder)) / self._model
        try:
            folder.mkdir()
            write_weights(weights.tensors(), folder / "model.safetensors", self._shapes)
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
    """What all schedulers of a server answered; where they do not agree the server has weights of no version."""
    bad = next((answer for answer in answers if answer.way not in LOADED), answers[0])
    alike = all((answer.way in LOADED) == (bad.way in LOADED) for answer in answers)
    if bad.way == "overwritten":
        raise Overwritten("new weights were overwritten while SGLang loaded them")
    if bad.way == "failed" or not alike:
        raise HalfLoaded(f"SGLang could not load new weights: {bad.message}")
    return bad
