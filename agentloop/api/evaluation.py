"""`rollout`: play episodes without training, for the command line and for Python."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentloop.api.arguments import checked
from agentloop.api.recipe import claimed_folder, new_folder, run_folders, run_name
from agentloop.api.training import announce_libraries
from agentloop.errors import UserError
from agentloop.process.blocking import run_blocking
from agentloop.process.quiet import quiet_libraries
from agentloop.registry.extras import naming_extras

if TYPE_CHECKING:
    from agentloop.api.config import ConfigSource
    from agentloop.config.run import RunConfig
    from agentloop.trainer.workers.local import LocalWorkers
    from agentloop.types.requests import Group, RolloutRequest, Split
    from agentloop.types.trajectory import Trajectory


@dataclass(slots=True, frozen=True)
class RolloutResult:
    """Episodes that a model played, and their summary."""

    folder: Path
    """Folder with trajectories.jsonl and summary.json; `agentloop view` shows it."""
    plays: str
    """Description of the model that played the episodes."""
    summary: dict[str, float]
    """Metrics of all episodes: `tasks`, `episodes`, `judged` (episodes with a reward), `mean reward`, `pass@1`,
    `pass@2` and so on, the mean `turns`, `calls` and `tokens an episode`, and the `temperature` (of `sampling`, even
    for held-out tasks)."""
    groups: list[Group] = field(repr=False)
    """The episodes of each task, in the order of the tasks."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """All episodes, task by task."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]


@checked
def rollout(
    config: ConfigSource,
    *,
    tasks: Literal["train", "eval"] | None = None,
    samples: int = 1,
    limit: int | None = None,
    threshold: float = 1.0,
    output: str | PathLike[str] | None = None,
    step: int | None = None,
    resume: bool = False,
    progress: bool = True,
    **overrides: Any,
) -> RolloutResult:
    """Evaluate a model: play episodes without training, write their trajectories, and return them.

        before = agentloop.rollout("tiny", limit=20)
        after = agentloop.rollout(run.folder, limit=20)
        print(before.summary["mean reward"], after.summary["mean reward"])

    Args:
        config: As for `train`, or a run or its folder, whose trained model plays.
        tasks: Tasks to play; None: the held-out tasks, "eval", if there are any, else "train". Both use
            `config.sampling`, whereas evaluations during a run use `config.eval`, which is greedy by default.
        samples: Number of episodes of each task.
        limit: Number of tasks to play, from the first; None: all.
        threshold: Lowest reward that counts as solved in pass@k.
        output: Folder to write to; None: a new folder below runs/.
        step: Step of the run whose model plays; 0: the model that training started from.
        resume: Go on with the rollout in `output`, or else the newest one below runs/ with this config: play the
            episodes that were not played, or that failed.
        progress: Show how many episodes have ended.
        **overrides: Sections and keys of the config to set, as for `train`.

    Returns:
        The episodes and their summary. Episodes that could not be scored have no reward and are excluded from the mean.

    Raises:
        UserError: The config is invalid, a package is missing, `step` is not that of a checkpoint, or the output folder
            has another rollout; the message says what to do.
        KeyboardInterrupt: Ctrl-C, or an interrupt of a notebook's kernel. Finished episodes are written, and `resume`
            keeps them.
    """
    with naming_extras():
        from agentloop.api.config import config_of

        folder = Path(fspath(config)).expanduser() if isinstance(config, str | PathLike) else None
        return rollout_config(
            config_of(config, overrides),
            run_name(config),
            played_by=folder if "model" not in overrides else None,
            tasks=tasks,
            samples=samples,
            limit=limit,
            threshold=threshold,
            output=None if output is None else Path(output).expanduser(),
            step=step,
            resume=resume,
            continue_with=lambda folder: f"the same arguments, output={str(folder)!r} and resume=True",
            progress=progress,
        )


def rollout_config(
    config: RunConfig,
    name: str,
    *,
    played_by: Path | None = None,
    tasks: Literal["train", "eval"] | None = None,
    samples: int = 1,
    limit: int | None = None,
    threshold: float = 1.0,
    output: Path | None = None,
    step: int | None = None,
    resume: bool = False,
    continue_with: Callable[[Path], str],
    progress: bool = True,
) -> RolloutResult:
    """Play episodes with a config. If `played_by` is the folder of a run, its trained model plays.

    `continue_with` returns the command or the arguments that resume the rollout in a folder.
    """
    quiet_libraries()
    announce_libraries(shown=progress)
    from agentloop.api.figures import summary
    from agentloop.api.progress import EpisodeProgress
    from agentloop.api.rollout_folder import RolloutFolder
    from agentloop.api.trajectory_writer import TrajectoryWriter
    from agentloop.config.resolved import Facts, resolve
    from agentloop.engines import ENGINES
    from agentloop.episodes.setup import RolloutSetup, make_engine
    from agentloop.trainer.run.model_folder import local_model
    from agentloop.trainer.workers.local import LocalWorkers
    from agentloop.trainer.workers.requests import make_requests
    from agentloop.weights.files import weights_digest

    if samples < 1 or (limit is not None and limit < 1):
        raise UserError(f"samples is {samples} and limit is {limit}: set both to 1 or more.")
    if not math.isfinite(threshold):
        raise UserError(
            f"threshold is {threshold}, but pass@k needs a number to compare rewards with. Set it to, say, 1.0."
        )
    config, plays = _with_model(config, played_by, step)
    if output is not None or not resume:
        RolloutFolder(output or new_folder(name, "-rollout")).check(resume=resume)
    is_served = ENGINES.get(config.engine.name).read_turn is not None
    model = Path(config.model) if is_served else local_model(config)
    episodes = RolloutSetup.load(config, model)
    if tasks == "eval" and not episodes.eval:
        raise UserError("tasks is eval, but this recipe has no held-out tasks. Set data.eval, or omit tasks.")
    split: Split = "eval" if episodes.eval and tasks != "train" else "train"
    chosen = episodes.eval if split == "eval" else episodes.train
    rows = range(len(chosen))[:limit]
    requests = make_requests("rollout", rows, n=samples, seed=config.run.seed, split=split)
    if output is None and resume:
        output = _rollout_to_resume(config, name, split, samples)
    engine = make_engine(resolve(config, Facts(model=model, learns=False)))
    with claimed_folder(name, "-rollout") if output is None else nullcontext(output) as root:
        root.mkdir(parents=True, exist_ok=True)
        folder = RolloutFolder(root)
        with folder.locked(resume=resume), EpisodeProgress(plays, total=len(rows) * samples, shown=progress) as bar:
            weights = "" if is_served else weights_digest(model)
            kept = folder.keep_played(config, split, samples, weights, chosen, len(rows)) if resume else []
            folder.begin(config, split, samples, weights)
            bar.advance(len(kept))
            writer = TrajectoryWriter(folder.trajectories)

            def ended(trajectory: Trajectory) -> None:
                # Write each episode when it ends, so that a rollout that is stopped keeps finished episodes.
                writer.append(trajectory)
                bar.advance()

            try:
                with writer:
                    missing = _missing(requests, kept)
                    played = run_blocking(_play, LocalWorkers(episodes, engine), missing, ended) if missing else []
            except (KeyboardInterrupt, asyncio.CancelledError, UserError):
                bar.stopped(len(kept) + writer.num_written, root, continue_with(root))
                raise
        groups = _joined(requests, kept, played)
        figures = summary(groups, threshold=threshold)
        figures["temperature"] = config.sampling.temperature
        folder.write_summary({"model": str(model), "plays": plays} | figures)
    return RolloutResult(root, plays, figures, groups)


def _rollout_to_resume(config: RunConfig, name: str, split: Split, samples: int) -> Path:
    """Return the newest folder of a rollout with these settings. Raises `UserError` if there is none."""
    from agentloop.api.rollout_folder import RolloutFolder

    for root in run_folders(f"{name}-rollout"):
        folder = RolloutFolder(root)
        if folder.is_begun and not folder.changes(config, split, samples):
            folder.check(resume=True)
            return root
    raise UserError(
        f"No rollout of {name} with this config is below {Path('runs').absolute()}. Set output to the folder of the "
        "rollout, or omit resume to start a new one."
    )


def _missing(requests: Sequence[RolloutRequest], kept: Sequence[Trajectory]) -> list[RolloutRequest]:
    """Return requests for the episodes that were not kept."""
    done = {(trajectory.group_id, trajectory.place) for trajectory in kept}
    places = [tuple(place for place in each.played if (each.group_id, place) not in done) for each in requests]
    return [replace(each, places=open_) for each, open_ in zip(requests, places, strict=True) if open_]


def _joined(requests: Sequence[RolloutRequest], kept: Sequence[Trajectory], played: Sequence[Group]) -> list[Group]:
    """Return the groups of all requests, with episodes that were kept and others that were played now."""
    from agentloop.types.requests import Group

    found: dict[str, list[Trajectory]] = {each.group_id: [] for each in requests}
    for trajectory in (*kept, *(each for group in played for each in group.trajectories)):
        found[trajectory.group_id].append(trajectory)
    return [Group(each, sorted(found[each.group_id], key=lambda one: one.place)) for each in requests]


def _with_model(config: RunConfig, run: Path | None, step: int | None) -> tuple[RunConfig, str]:
    """Return the config with the model that plays, and a description of that model."""
    from agentloop.engines import ENGINES
    from agentloop.trainer.run.export import is_run, trained_model

    if run is None or not is_run(run):
        if step is not None:
            raise UserError(
                f"step is {step}, which selects a model of a run. Pass the folder of a run, and omit model."
            )
        return config, f"the model {config.model}"
    if step == 0:
        return config, f"the model {config.model}"
    if ENGINES.get(config.engine.name).read_turn is not None:
        raise UserError(
            f"engine.name={config.engine.name} cannot play the trained model of {run}, which is on this machine. "
            "Serve it, and set model= to its served name and engine.options.base_url to its address."
        )
    folder, description = trained_model(run, step)
    return config.replace(model=os.path.abspath(folder)), description  # so that it resumes from any working directory


async def _play(
    workers: LocalWorkers, requests: Sequence[RolloutRequest], on_trajectory: Callable[[Trajectory], None]
) -> list[Group]:
    from agentloop.trainer.workers.requests import play_all

    try:
        await workers.start()
        return await play_all(workers, requests, on_trajectory)
    finally:
        await workers.close()
