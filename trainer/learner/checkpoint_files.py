"""Read and write the safetensors files of a Hugging Face folder, tensor by tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentloop.errors import UserError

_INDEX = "model.safetensors.index.json"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".index.json")


class CheckpointFiles:
    """Reads memory-mapped tensors: a rank that takes part of a tensor does not load the rest."""

    def __init__(self, folder: Path) -> None:
        """Open all files of a folder. Raises `UserError` if it has no safetensors files."""
        from safetensors import safe_open

        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise UserError(f"{folder} has no *.safetensors files. Set model to a folder that has them.")
        self._folder = folder
        self._of: dict[str, Any] = {}
        for path in paths:
            opened = safe_open(path, framework="pt")
            self._of |= dict.fromkeys(opened.keys(), opened)
        self.shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in self._of.items()}

    def read(self, name: str) -> Tensor:
        """Return a tensor. Raises `UserError` if no file has it."""
        if name not in self._of:
            raise UserError(f"The weights in {self._folder} have no {name}. Use weights of the model in config.json.")
        tensor: Tensor = self._of[name].get_tensor(name)
        return tensor


def write_checkpoint(folder: Path, tensors: Iterable[tuple[str, Tensor]], largest_file: int = 4 * 2**30) -> None:
    """Write files of at most `largest_file` bytes and their index; one file is in memory at a time."""
    from safetensors.torch import save_file

    part: dict[str, Tensor] = {}
    names: list[list[str]] = []
    size = total = 0

    def flush() -> None:
        save_file(part, folder / f"part-{len(names)}", metadata={"format": "pt"})
        names.append(list(part))
        part.clear()

    for name, tensor in tensors:
        if part and size + tensor.nbytes > largest_file:
            flush()
            size = 0
        part[name] = tensor.detach().cpu().contiguous().clone()
        size += tensor.nbytes
        total += tensor.nbytes
    flush()
    files = [f"model-{number + 1:05}-of-{len(names):05}.safetensors" for number in range(len(names))]
    if len(files) == 1:
        files = ["model.safetensors"]
    for number, name in enumerate(files):
        (folder / f"part-{number}").rename(folder / name)
    if len(files) > 1:
        index = {name: file for file, inside in zip(files, names, strict=True) for name in inside}
        (folder / _INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2))


def saved_dtype(source: Path, wanted: str) -> torch.dtype:
    """Return the data type to save weights in: `wanted`, or for auto that of the model in `source`."""
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    own = {**settings.get("text_config", {}), **settings}
    name = (own.get("dtype") or own.get("torch_dtype") or "float32") if wanted == "auto" else wanted
    dtype = getattr(torch, str(name).removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype


def write_model_config(source: Path, target: Path, dtype: torch.dtype) -> None:
    """Write the config.json of `source` with the data type of the saved weights.

    The config of the model in memory is not used, because training changes it (`use_cache`, the attention).
    """
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    for part in (settings, *(value for value in settings.values() if isinstance(value, dict))):
        if part is settings or "dtype" in part or "torch_dtype" in part:
            part.pop("torch_dtype", None)
            part["dtype"] = str(dtype).removeprefix("torch.")
    (target / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def copy_model_extras(source: Path, target: Path, chat_template: str | None) -> None:
    """Copy tokenizer, chat templates and other files: all that have no weights and are not yet in `target`.

    `chat_template` is the text of a template that replaces those of `source`; None: theirs are copied.
    """
    if chat_template is not None:
        (target / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    for path in source.iterdir():
        if path.name.startswith(".") or path.name.endswith(_WEIGHT_SUFFIXES) or (target / path.name).exists():
            continue
        if path.is_dir():
            if path.name == "additional_chat_templates" and chat_template is None:
                shutil.copytree(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)  # follows links, so that the copy is self-contained
