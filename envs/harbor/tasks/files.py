"""Upload folders of a task without the files that its .harborignore leaves out."""

from __future__ import annotations

import shutil
from pathlib import Path

from agentloop.boxes.interface.box import Box
from agentloop.errors import UserError
from agentloop.process import owned_folders

_IGNORE = ".harborignore"


async def upload_selected(task: Path, folder: Path, box: Box, target: str) -> None:
    """Upload the files of `folder` to the directory `target`, without those that .harborignore leaves out.

    Such files, in the syntax of .gitignore, may be in the folder and below it. Links within the task become copies of
    their targets.
    """
    with owned_folders.temporary("agentloop-files-") as made:
        copy = made / "files"
        shutil.copytree(folder, copy)
        _remove_ignored(copy)
        await box.upload(copy, target)


def _remove_ignored(folder: Path) -> None:
    for ignore in sorted(folder.rglob(_IGNORE)):
        lines = ignore.read_text(encoding="utf-8").splitlines()
        ignore.unlink()
        for path in _spec(lines).match_tree_files(ignore.parent):
            (ignore.parent / path).unlink(missing_ok=True)


def _spec(lines: list[str]):  # type: ignore[no-untyped-def]
    try:
        from pathspec import GitIgnoreSpec
    except ImportError:
        raise UserError(
            f"The task has a {_IGNORE}, which needs the package pathspec: pip install 'agentloop[harbor]'."
        ) from None
    return GitIgnoreSpec.from_lines(lines)
