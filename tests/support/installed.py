"""Fake installed packages for one test."""

from pathlib import Path


def install(folder: Path, group: str, **entries: str) -> None:
    """Make `folder` look like site-packages with one package that registers name=target in an entry-point group."""
    info = folder / "example-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
