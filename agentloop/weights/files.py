"""Weights in safetensors files: names and shapes of a checkpoint, and new weights for a server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from agentloop.errors import EngineError

if TYPE_CHECKING:
    import torch

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx")
"""Patterns of the names of files with weights."""
_COMPARED_BLOCKS = 64
_BLOCK_BYTES = 4096


def write_weights(
    weights: Iterable[tuple[str, torch.Tensor]], file: Path, expected: dict[str, tuple[int, ...]] | None
) -> None:
    """Write weights to a safetensors file.

    `expected` are the shapes of the checkpoint. Raises `EngineError` for unknown or missing names and wrong shapes, and
    then writes no file.
    """
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in weights:
        tensor = tensor.detach().to("cpu").contiguous()
        # Tied weights share their storage, which safetensors does not allow.
        shared = tensor.untyped_storage().data_ptr() in seen
        tensors[name] = tensor.clone() if shared else tensor
        seen.add(tensor.untyped_storage().data_ptr())
    if expected is not None:
        check_names({name: tuple(tensor.shape) for name, tensor in tensors.items()}, expected)
    save_file(tensors, file)


def check_names(given: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]) -> None:
    """Raise `EngineError` for unknown or missing names and wrong shapes.

    A tied head may be in only one of the two, and vision models have two naming schemes.
    """
    given, expected = ({_short(name): shape for name, shape in names.items()} for names in (given, expected))
    unknown = sorted(given.keys() - expected.keys() - {"lm_head.weight"})
    missing = sorted(expected.keys() - given.keys() - {"lm_head.weight"})
    shapes = [
        f"{name} {shape} instead of {expected[name]}"
        for name, shape in given.items()
        if name in expected and shape != expected[name]
    ]
    for what, names in (
        ("new weights have names that the model does not have:", unknown),
        ("new weights lack", missing),
        ("new weights have shapes that differ from the model:", shapes),
    ):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise EngineError(f"{what} {', '.join(names[:5])}{more}")


def _short(name: str) -> str:
    """Return the name as in checkpoints of Qwen2.5-VL, which is shorter than in later models; vLLM accepts both."""
    if name.startswith("model.visual."):
        return name.removeprefix("model.")
    return name.replace("model.language_model.", "model.", 1)


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]] | None:
    """Return name -> shape of the weights in the safetensors files of `folder`; None if there are none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
        shapes.update({name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"})
    return shapes or None


def weights_digest(folder: Path) -> str:
    """Return a digest of the weights of the model in `folder`.

    It covers the name and size of each file, and blocks spread over all of them: to read everything may take minutes,
    and training changes nearly all weights.
    """
    files = sorted({file for pattern in WEIGHT_FILES for file in folder.glob(pattern)})
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        blocks = -(-_COMPARED_BLOCKS // len(files))
        with file.open("rb") as opened:
            for number in range(blocks):
                opened.seek(size * number // blocks)
                digest.update(opened.read(_BLOCK_BYTES))
    return digest.hexdigest()
