"""The command `agentloop plan`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    case the file is not available. If no layout fits, the command exits with 1.
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
    nodes = -(-gpus // gpus_per_node)
    cluster = Cluster(
        gpu=known_gpus.find(gpu),
        gpus=gpus,
        gpus_per_node=gpus_per_node if nodes == 1 else gpus // nodes,
        engine_gpus=engine_gpus,
        sleep=wanted_sleep(config),
    )
    _check_nodes(cluster, nodes)
    model = find_model(config)
    if model.note:
        typer.echo(f"Estimated without the model: {model.note}.", err=as_json)
    run = planned(config, model.hf_config, mean_tokens=mean_tokens, sampled=sampled)
    if measured is not None:
        run = _calibrated(run, config, cluster, measured, measured_gpus)
    backends: Any = ("fsdp", "megatron") if backend == "all" else (backend,)
    found = search(run, cluster, backends)
    if run.fsdp_only and backend == "all":
        typer.echo(f"Without layouts of megatron: {run.fsdp_only}", err=as_json)
    own = _own(config, run, cluster)
    if as_json:
        typer.echo(json.dumps(_plain(found, own, config, cluster), indent=1))
    else:
        best = found.fitting[0] if found.fitting else None
        command = _command(recipe, overrides or [], _changed(config, best, cluster)) if best else []
        print_found(found, own, run, cluster, top=top, command=command)
    if not found.fitting:
        raise typer.Exit(1)


def _check_nodes(cluster: Cluster, nodes: int) -> None:
    """Raise `UserError` if no run can have these GPUs on that number of nodes."""
    from agentloop.trainer.sizing.layouts import Layout

    if cluster.gpus % nodes:
        raise UserError(
            f"--gpus {cluster.gpus} needs {nodes} nodes, and all nodes need the same number of GPUs. Set --gpus to a "
            f"multiple of {nodes}, or change --gpus-per-node."
        )
    if any(cluster.placement(Layout(), 1).problems()):
        raise UserError(
            f"--engine-gpus {cluster.engine_gpus} leaves the learner {cluster.learner_gpus} of {cluster.gpus} GPUs, "
            f"but a learner on several nodes needs all of their GPUs. Set --engine-gpus so that the learner has "
            f"{cluster.gpus_per_node} GPUs or less, or a multiple of {cluster.gpus_per_node}."
        )


def _own(config: RunConfig, run: PlannedRun, cluster: Cluster) -> Estimate | str:
    """Return an estimate of the layout in the recipe, or why it is impossible."""
    from agentloop.trainer.sizing.derive import candidates, learner_layout, problems_of
    from agentloop.trainer.sizing.search import estimated

    wanted = {key.removeprefix("placement."): value for key, value in cluster.settings().items()}
    [placement] = candidates(config.replace(placement=config.placement.replace(**wanted)), run)
    if reasons := problems_of(config, placement, run):
        return " ".join(reasons)
    return estimated(run, cluster, learner_layout(config, placement), placement.engine_tensor)


def _changed(config: RunConfig, estimate: Estimate, cluster: Cluster) -> dict[str, Any]:
    """Return the settings of an estimate that differ from those of the config."""
    from agentloop.trainer.sizing.place import contradictions

    changed = {key: value for key, value in estimate.settings(cluster).items() if _value(config, key) != value}
    return changed | contradictions(config, cluster.placement(estimate.layout, estimate.engine_tensor))


def _value(config: RunConfig, key: str) -> Any:
    section, *_, name = key.split(".")
    if key.startswith("engine.options."):  # both are degrees of parallelism
        return config.engine.options.get(name, 1)
    return getattr(getattr(config, section), name)


def _command(recipe: str, overrides: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Return the command that trains the recipe with `settings`, which replace overrides of the same keys."""
    kept = [override for override in overrides if override.partition("=")[0].strip() not in settings]
    return ["agentloop", "train", recipe, *kept, *(f"{key}={_yaml(value)}" for key, value in settings.items())]


def _yaml(value: Any) -> str:
    import yaml

    is_plain = isinstance(value, str) and yaml.safe_load(value) == value  # a plain off is false
    return value if is_plain else json.dumps(value)


def _calibrated(run: PlannedRun, config: RunConfig, cluster: Cluster, path: Path, gpus: int) -> PlannedRun:
    """Scale times to the steps in the metrics file `path`, from a run whose learner had `gpus` GPUs."""
    from dataclasses import replace

    from agentloop.trainer.sizing.calibration import scale_from_metrics
    from agentloop.trainer.sizing.layouts import Layout

    return replace(run, scale=scale_from_metrics(path, run, cluster, Layout.of(config.learner, gpus)))


def _plain(found: Found, own: Estimate | str, config: RunConfig, cluster: Cluster) -> dict[str, Any]:
    return {
        "recipe": own if isinstance(own, str) else _plain_estimate(own, config, cluster),
        "fitting": [_plain_estimate(estimate, config, cluster) for estimate in found.fitting],
        "obstacles": dict(found.obstacles.most_common()),
    }


def _plain_estimate(estimate: Estimate, config: RunConfig, cluster: Cluster) -> dict[str, Any]:
    memory = asdict(estimate.training) | {"total": estimate.training.total}
    plain = asdict(estimate) | {"settings": _changed(config, estimate, cluster), "training": memory}
    sharing = estimate.sharing
    return plain | {"sharing": {"sleeps": sharing.sleeps, "handover_seconds": sharing.handover_seconds}}
