"""Folders that appear whole or not at all, and what belongs to a model folder besides its weights."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".index.json")


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Write into the yielded folder; it becomes `folder` once everything in it is on disk.

    Replaces a `folder` that is there. A killed process leaves `folder` as it was, or, between two renames, under
    `.old`; what it left in `.tmp` is removed by the next one.
    """
    folder = Path(os.path.abspath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = folder.with_name(folder.name + ".tmp"), folder.with_name(folder.name + ".old")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for path in [*temporary.rglob("*"), temporary]:
            _sync(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    temporary.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_model_extras(source: Path, target: Path) -> None:
    """Copy tokenizer, chat templates and the like: all that is no weight and is not in `target` yet."""
    for path in source.iterdir():
        if path.name.startswith(".") or path.name.endswith(_WEIGHTS) or (target / path.name).exists():
            continue
        if path.is_dir():
            if path.name == "additional_chat_templates":
                shutil.copytree(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)  # follows links: the copy stands on its own
