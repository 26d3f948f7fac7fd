"""`agentloop from-verl`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def from_verl(
    source: Annotated[Path, typer.Argument(help="verl's config.yaml, e.g. outputs/DATE/TIME/.hydra/config.yaml.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file, not to the screen.")
    ] = None,
) -> None:
    """Settings of both are taken over; what a person has to look at stands above them as comments."""
    import textwrap

    import yaml

    from agentloop.trainer.from_verl import convert

    converted = convert(source)
    lines = [f"# Made from {source.name} of verl."]
    for note in converted.notes:
        lines += textwrap.wrap(note, 116, initial_indent="# - ", subsequent_indent="#   ")
    text = "\n".join(lines) + "\n" + yaml.safe_dump(converted.config, sort_keys=False, allow_unicode=True, width=116)
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text)
    typer.echo(
        f"Wrote {output}, with {len(converted.notes)} notes at its top. Next: agentloop train {output} --dry-run"
    )
