"""Read torch's distributed checkpoints safely: torch itself unpickles them, which can run code in a file."""

from __future__ import annotations

import io
import pickle
from pathlib import Path, PosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.serialization import _get_layout

from agentloop.errors import UserError, raised

_ADMITTED = {
    (thing.__module__, thing.__qualname__): thing
    for thing in (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageInfo,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
        _MEM_FORMAT_ENCODING,
        _get_layout,
        torch.Size,
    )
} | {(module, "PosixPath"): PosixPath for module in ("pathlib", "pathlib._local")}
"""Objects that `.metadata` may name, besides dtypes. Newer Python versions call the module of paths
`pathlib._local`."""


class RestrictedReader(FileSystemReader):
    """Reads a saved state whose `.metadata` names only classes of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        """Read the metadata. Raises `UserError` if it is not from a checkpoint, and `OSError` if it is missing."""
        super().__init__(folder)
        self._metadata = _read_metadata(folder / ".metadata")

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the metadata of all ranks, the only metadata of checkpoints that are saved with collectives."""
        return self._metadata


class RestrictedPlanner(DefaultLoadPlanner):
    """Reads values other than tensors, such as learning rates, with `weights_only`."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put a value into the state. Raises `UserError` if it contains more than plain data and tensors."""
        name = read_item.dest_index.fqn
        try:
            plain = torch.load(value, weights_only=True)
        except Exception as error:  # malformed data may raise anything
            raise _refusal(f"the value of {name} in a saved state", "it contains more than plain data") from error
        # The base class unpickles, so it gets a copy that was just written here.
        copy = io.BytesIO()
        torch.save(plain, copy)
        copy.seek(0)
        super().load_bytes(read_item, copy)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get((module, name))
        if found is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            found = getattr(torch, name)
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return found


def _read_metadata(file: Path) -> Metadata:
    with file.open("rb") as stream:
        try:
            metadata = _Unpickler(stream).load()
        except Exception as error:  # malformed pickles may raise anything
            raise _refusal(str(file), raised(error)) from error
    if not isinstance(metadata, Metadata):
        raise _refusal(str(file), f"it is a {type(metadata).__name__}")
    return metadata


def _refusal(what: str, why: str) -> UserError:
    return UserError(
        f"{what} was not saved by a learner: {why}. It was not read, and no code in it was run. Resume or export from "
        "a folder that a run wrote, and only from folders that you trust."
    )
