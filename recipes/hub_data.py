"""Shared code of the `prepare` scripts: read the folder argument, download datasets, write files of JSON lines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import UserError


def data_folder(module: Mapping[str, Any]) -> Path:
    """Return the folder that the command line of a script names, by default data/ beside the script.

    `module`: the `globals()` of the script.
    """
    parser = argparse.ArgumentParser(
        description=module["__doc__"], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(module["__file__"]).parent / "data"
    parser.add_argument("folder", nargs="?", type=Path, default=default, help=f"by default {default}")
    folder: Path = parser.parse_args().folder
    return folder


def load_hub_dataset(name: str, *args: Any, **options: Any) -> Any:
    """Call `datasets.load_dataset`.

    Raises `UserError` if the package `datasets` is not installed, or if the dataset cannot be downloaded.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError("The public datasets need the package datasets: pip install datasets.") from error
    try:
        return load_dataset(name, *args, **options)
    except OSError as error:
        raise UserError(f"The dataset {name} cannot be read from the Hugging Face hub: {error}") from error


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write one JSON object per line and return their number. The file appears atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    count = 0
    with unfinished.open("w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    unfinished.replace(path)
    return count
