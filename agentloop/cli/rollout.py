"""The command `agentloop rollout`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from agentloop.api.recipe import complete_recipe


def rollout(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML file, a folder with a config.yaml, the name of a recipe, or the folder of a run, whose "
            "trained model plays.",
            autocompletion=complete_recipe,
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Config keys to set, for example sampling.temperature=0.6.")
    ] = None,
    tasks: Annotated[
        Literal["train", "eval"] | None, typer.Option(help="Tasks to play; default: eval if the recipe has it.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Number of episodes of each task.")] = 1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of tasks to play, from the first; default: all.")
    ] = None,
    threshold: Annotated[float, typer.Option(help="Lowest reward that counts as solved in pass@k.")] = 1.0,
    output: Annotated[Path | None, typer.Option(help="Folder to write to; default: a new folder below runs/.")] = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Step of the run whose model plays; 0: the model that training started from."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the rollout in --output, or else the newest one below runs/ with this config: play the "
            "episodes that were not played, or that failed.",
        ),
    ] = False,
) -> None:
    """Evaluate a model: play episodes without training, and write their trajectories.

    Turns are sampled with `sampling`, whereas evaluations during a run use `eval`, which is greedy by default. The
    output folder also gets a summary with the model, the mean reward and pass@k. A rollout that is stopped, by
    Ctrl-C or an error, prints the command that resumes it. Exits with 1 if no episode could be scored.
    """
    from rich.console import Console

    from agentloop.api.evaluation import rollout_config
    from agentloop.api.recipe import load_run_config, run_name
    from agentloop.cli.rollout_report import print_report

    def command(folder: Path) -> str:
        options = {"--tasks": tasks, "--samples": samples, "--limit": limit, "--threshold": threshold, "--step": step}
        usual = {"--samples": 1, "--threshold": 1.0}
        chosen = [f"{name}={value}" for name, value in options.items() if value != usual.get(name)]
        words = [recipe, *(overrides or []), *chosen, f"--output={folder}", "--resume"]
        return shlex.join(["agentloop", "rollout", *words])

    names_model = any(override.startswith("model=") for override in overrides or [])
    result = rollout_config(
        load_run_config(recipe, overrides or []),
        run_name(recipe),
        played_by=None if names_model else Path(recipe).expanduser(),
        tasks=tasks,
        samples=samples,
        limit=limit,
        threshold=threshold,
        output=output,
        step=step,
        resume=resume,
        continue_with=command,
    )
    console = Console()
    print_report(console, result)
    console.print(
        f"wrote trajectories and summary to {result.folder}; "
        f"view them: agentloop view {shlex.quote(str(result.folder))}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if not result.summary["judged"]:
        raise typer.Exit(1)
