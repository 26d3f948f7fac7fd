"""The command `agentloop export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    output: Annotated[Path, typer.Argument(help="New folder for the model.")],
    step: Annotated[int | None, typer.Option(min=1, help="Step of a checkpoint; default: the newest.")] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None,
        typer.Option(help="Data type of the weights; auto: as the base model. Default: learner.save_dtype of the run."),
    ] = None,
) -> None:
    """Write the model of a checkpoint as a Hugging Face folder, which transformers, vLLM and SGLang load."""
    from agentloop.trainer.run.export import export as export_model

    chosen = export_model(run.expanduser(), output.expanduser(), step=step, dtype=dtype)
    typer.echo(f"wrote the model after step {chosen} to {output}")
