"""The command `agentloop plan`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentloop.api.recipe import complete_recipe
from agentloop.errors import UserError

if TYPE_CHECKING:
    from agentloop.config.run import RunConfig
    from agentloop.trainer.sizing.search import Cluster, Estimate, Found, PlannedRun


def plan(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML file, a folder with a config.yaml, or the name of a recipe.", autocompletion=complete_recipe
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Config keys to set, for example model=Qwen/Qwen3-8B.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="Number of GPUs.")] = 8,
    gpu: Annotated[str, typer.Option(help="Type of GPU; H200:100 is an H200 with 100 GiB.")] = "H200",
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Number of GPUs in each node.")] = 8,
    engine_gpus: Annotated[
        int, typer.Option(min=0, help="Number of GPUs only for engines; 0: engines share all GPUs with the learner.")
    ] = 0,
    backend: Annotated[Literal["fsdp", "megatron", "all"], typer.Option(help="Learner backends to try.")] = "all",
    mean_tokens: Annotated[
        float | None, typer.Option(min=1, help="Mean tokens of an episode; default: half of limits.max_tokens.")
    ] = None,
    sampled: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Fraction of the tokens that the model samples.")
    ] = 0.5,
    measured: Annotated[
        Path | None, typer.Option(help="metrics.jsonl of a run of this recipe, to calibrate times.")
    ] = None,
    measured_gpus: Annotated[int, typer.Option(min=1, help="Number of learner GPUs in the measured run.")] = 1,
    top: Annotated[int, typer.Option(min=1, help="Number of layouts to show.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print all layouts that fit, as JSON.")] = False,
) -> None:
    """Estimate which layouts fit on a number of GPUs, and how long a step takes.

    The estimate needs only config.json of the model, no weights. agentloop includes the shapes of common models, in
    case the file is not available.
    """
    from agentloop.api.recipe import load_run_config
    from agentloop.cli.plan_report import print_found
    from agentloop.trainer.run.model_folder import find_model
    from agentloop.trainer.sizing import gpus as known_gpus
    from agentloop.trainer.sizing.derive import wanted_sleep
    from agentloop.trainer.sizing.place import planned
    from agentloop.trainer.sizing.search import Cluster, search

    config = load_run_config(recipe, overrides or [])
    if engine_gpus >= gpus:
        raise UserError(
            f"--engine-gpus {engine_gpus} leaves none of {gpus} GPUs to train on. Lower it, or raise --gpus."
        )
    cluster = Cluster(
        gpu=known_gpus.find(gpu),
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        engine_gpus=engine_gpus,
        sleep=wanted_sleep(config),
    )
    model = find_model(config)
    if model.note:
        typer.echo(f"Estimated without the model: {model.note}.", err=as_json)
    run = planned(config, model.hf_config, mean_tokens=mean_tokens, sampled=sampled)
    if measured is not None:
        run = _calibrated(run, config, cluster, measured, measured_gpus)
    backends: Any = ("fsdp", "megatron") if backend == "all" else (backend,)
    found = search(run, cluster, backends)
    own = _own(config, run, cluster)
    if as_json:
        typer.echo(json.dumps(_plain(found, own, cluster), indent=1))
    else:
        command = ["agentloop", "train", recipe, *(overrides or [])]
        print_found(found, own, run, cluster, top=top, command=command)


def _own(config: RunConfig, run: PlannedRun, cluster: Cluster) -> Estimate | str:
    """Return an estimate of the layout in the recipe, or why it is impossible."""
    from agentloop.trainer.sizing.layouts import Layout, problems
    from agentloop.trainer.sizing.search import estimated

    layout = Layout.of(config.learner, cluster.learner_gpus)
    if reasons := list(problems(layout, run.shape)):
        return " ".join(reasons)
    return estimated(run, cluster, layout, int(config.engine.options.get("tensor_parallel_size", 1)))


def _calibrated(run: PlannedRun, config: RunConfig, cluster: Cluster, path: Path, gpus: int) -> PlannedRun:
    """Scale times to the steps in the metrics file `path`, from a run whose learner had `gpus` GPUs."""
    from dataclasses import replace

    from agentloop.trainer.sizing.calibration import scale_from_metrics
    from agentloop.trainer.sizing.layouts import Layout

    return replace(run, scale=scale_from_metrics(path, run, cluster, Layout.of(config.learner, gpus)))


def _plain(found: Found, own: Estimate | str, cluster: Cluster) -> dict[str, Any]:
    return {
        "recipe": own if isinstance(own, str) else _plain_estimate(own, cluster),
        "fitting": [_plain_estimate(estimate, cluster) for estimate in found.fitting],
        "obstacles": dict(found.obstacles.most_common()),
    }


def _plain_estimate(estimate: Estimate, cluster: Cluster) -> dict[str, Any]:
    memory = asdict(estimate.training) | {"total": estimate.training.total}
    plain = asdict(estimate) | {"settings": estimate.settings(cluster), "training": memory}
    sharing = estimate.sharing
    return plain | {"sharing": {"sleeps": sharing.sleeps, "handover_seconds": sharing.handover_seconds}}
