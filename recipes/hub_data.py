"""Download public datasets of the Hugging Face hub and write them as JSON lines, for the `prepare` scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import UserError


def load_hub_dataset(*args: Any, **options: Any) -> Any:
    """Call `datasets.load_dataset`. Raises `UserError` if the package `datasets` is not installed."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError("The public datasets need the package datasets: pip install datasets.") from error
    return load_dataset(*args, **options)


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
