"""`agentloop from-verl`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer


def from_verl(
    source: Annotated[
        list[str],
        typer.Argument(
            help="A launch script with its arguments, the config.yaml of a run (outputs/DATE/TIME/.hydra/config.yaml), "
            "or -- and the command or its overrides."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file, not to the screen.")
    ] = None,
) -> None:
    """Settings of both are taken over; what a person has to look at stands above them as comments. A script is expanded
    by its shell, and nothing that it would start is started."""
    import yaml

    from agentloop.trainer.from_verl import convert

    converted = convert(*source)
    head = [
        f"# Made from {Path(source[0]).name if '=' not in source[0] else 'a command'} of verl.",
        *_listed("Not taken over:", converted.lacks),
        *_listed("To look at:", converted.notes),
    ]
    text = "\n".join(head) + "\n" + yaml.safe_dump(converted.config, sort_keys=False, allow_unicode=True, width=116)
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text)
    typer.echo(
        f"Wrote {output}. At its top: {len(converted.lacks)} settings that were not taken over, {len(converted.notes)} "
        f"to look at. Next: agentloop train {output} --dry-run"
    )


def _listed(title: str, items: list[str]) -> Iterator[str]:
    import textwrap

    if items:
        yield f"# {title}"
    for item in items:
        yield from textwrap.wrap(item, 116, initial_indent="# - ", subsequent_indent="#   ")
