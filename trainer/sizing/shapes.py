"""Configs of well-known models, for estimates on machines that have neither their files nor a network.

`shapes.json` has the values that determine memory and time: widths, numbers of layers and experts, and the context.
They are not enough to load a model.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def shapes() -> dict[str, dict[str, Any]]:
    """Return model name on the Hugging Face hub -> known content of its config.json."""
    entries = json.loads(files(__package__).joinpath("shapes.json").read_text(encoding="utf-8"))
    return {name: entry["config"] for entry in entries for name in entry["names"]}


def shape_of(name: str) -> Any | None:
    """Return the transformers config of a well-known model; None for others."""
    from transformers import AutoConfig

    return AutoConfig.for_model(**shapes()[name]) if name in shapes() else None
