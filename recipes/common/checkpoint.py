"""The command line of every small task: make the checkpoint that its run starts from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from agentloop.recipes.tiny.fine_tuning import report_updates, size_of


def make_checkpoint(warm_up: Callable[..., Path], folder: Path) -> None:
    """Warm up a model into the first argument of the command, or into `folder`, the checkpoint of the recipe.

    `warm_up` takes the folder and `on_update`; progress and the size are printed.
    """
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
    warm_up(folder, on_update=report_updates())
    print(size_of(folder))
