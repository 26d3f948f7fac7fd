"""The command `agentloop from-verl`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from agentloop.errors import UserError, nearest


class _BeforeAScript(TyperCommand):
    """Command whose unknown options may be those of a script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = [name for parameter in self.get_params(ctx) for name in parameter.opts]
        for word in args[: args.index("--")] if "--" in args else args:
            name = word.partition("=")[0]
            if len(name) > 1 and name.startswith("-") and not {name, name[:2]} & set(known):
                raise UserError(
                    f"There is no option {name!r}.{nearest(name, known)} If it belongs to the script, write -- before "
                    "the script: agentloop from-verl -o run.yaml -- run.sh --model qwen"
                )
        return super().parse_args(ctx, args)


app = typer.Typer(add_completion=False)


@app.command(cls=_BeforeAScript)
def from_verl(
    source: Annotated[
        list[str],
        typer.Argument(
            help="Launch script with its arguments; or config.yaml of a run (outputs/DATE/TIME/.hydra/config.yaml); "
            "or -- followed by the command or its overrides, or by a script with options."
        ),
    ],
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="NAME[=VALUE]",
            help="Environment variable for the script; default: its value here; repeat for more.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New file for the config; default: standard output.")
    ] = None,
) -> None:
    """Convert a launch script or a config of verl to a config of agentloop.

    Comments at the top list the settings that have no counterpart, and the differences to check by hand. bash expands a
    script in a sandbox without starting its programs. The script sees only the environment variables HOME, USER and
    PWD, and those of --env.
    """
    import yaml

    from agentloop.trainer.from_verl import convert

    if output is not None and output.exists():  # the script itself, or a config that was edited
        raise UserError(f"{output} exists. Write to a new file.")
    converted = convert(*source, variables=dict(_variable(each) for each in env or ()))
    head = [
        f"# Converted from {Path(source[0]).name if '=' not in source[0] else 'a command'} of verl.",
        *_listed("Not converted:", converted.lacks),
        *_listed("To check:", converted.notes),
    ]
    text = "\n".join(head) + "\n" + yaml.safe_dump(converted.config, sort_keys=False, allow_unicode=True, width=116)
    if output is None:
        typer.echo(text, nl=False)
        return
    _write(output, text)
    typer.echo(
        f"Wrote {output}. Its first lines list {len(converted.lacks)} settings that were not converted and "
        f"{len(converted.notes)} differences to check. Next: agentloop train {shlex.quote(str(output))} --dry-run"
    )


def _write(path: Path, text: str) -> None:
    from agentloop.process.atomic import write_text

    try:
        write_text(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}. Choose another path for --output.") from error


def _variable(text: str) -> tuple[str, str]:
    """Read NAME=VALUE, or NAME of a variable that is set."""
    import os

    name, equals, value = text.partition("=")
    if not equals and name not in os.environ:
        raise UserError(f"The variable {name!r} of --env is not set. Set it, or pass its value: --env {name}=VALUE.")
    return name, value if equals else os.environ[name]


def _listed(title: str, items: list[str]) -> Iterator[str]:
    import textwrap

    if items:
        yield f"# {title}"
    for item in items:
        yield from textwrap.wrap(" ".join(item.split()), 116, initial_indent="# - ", subsequent_indent="#   ")
