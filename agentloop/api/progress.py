"""Progress of a run in a terminal or notebook: a table of the last steps, and below it the current stage.

Other outputs get one plain line per step.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich import box
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentloop.api.hints import Hints
from agentloop.api.live import live
from agentloop.config.run import RunConfig, schedule_updates
from agentloop.trainer.run.checkpoints import checkpoint_steps
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.schedule.observers import Observer, Part, Stage
from agentloop.trainer.sizing.batch_sizes import BatchSizes

if TYPE_CHECKING:
    from agentloop.config.run import TrainingConfig
    from agentloop.types.trajectory import Trajectory

_COLUMNS = {
    "reward": ("reward/mean", "{:.3f}"),
    "reverse KL": ("distillation/reverse_kl", "{:.4f}"),
    "tool calls": ("rollout/tool_call_rate", "{:.0%}"),
    "turns": ("rollout/turns", "{:.1f}"),
    "failed": ("failures/episodes", "{:.0f}"),
    "logprob diff": ("learner/logprob_diff", "{:.4f}"),
    "rollout s": ("time/rollout", "{:.1f}"),
    "train s": ("time/train", "{:.1f}"),
    "publish s": ("time/publish", "{:.1f}"),
    "eval reward": ("eval/reward/mean", "{:.3f}"),
}
_FINE_TUNING_COLUMNS = {
    "loss": ("learner/loss", "{:.4f}"),
    "right pairs": ("learner/accuracy", "{:.0%}"),
    "gradient": ("learner/grad_norm", "{:.3f}"),
    "lr": ("learner/lr", "{:.2g}"),
    "tokens": ("learner/num_tokens", "{:.0f}"),
    "step s": ("time/step", "{:.1f}"),
    "eval loss": ("eval/loss", "{:.4f}"),
    "eval reward": ("eval/reward/mean", "{:.3f}"),
}
_SHOWN_STEPS = 12


class RunProgress(Observer):
    """Observer that shows the progress of a run; a context manager around the run."""

    def __init__(
        self, console: Console | None = None, *, continue_with: str = "", slow_start_seconds: float = 2.0
    ) -> None:
        """Show progress on `console`. `continue_with` is the command or call that resumes an interrupted run.

        Parts of the run that take longer than `slow_start_seconds` to start are announced.
        """
        self._slow_start_seconds = slow_start_seconds
        self._continue_with = continue_with
        self._step = 0
        """Last finished step."""
        self._columns = _COLUMNS
        self._console = console or Console()
        self._rows: list[tuple[int, Mapping[str, float]]] = []
        self._progress = _bars(self._console)
        self._steps = self._progress.add_task("steps", total=None)
        self._stage = self._progress.add_task("", total=None, visible=False)
        self._live = live(self._console, self._renderable)
        self._is_live = self._console.is_terminal or self._console.is_jupyter
        self._episodes: dict[Stage, int] = {}
        self._folder: Path | None = None
        """Folder of the run, once it has started."""
        self._hints = Hints(Path())
        self._starting: dict[Part, asyncio.TimerHandle] = {}
        """Parts that are starting -> timer that announces them."""

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        for line in self._starting.values():
            line.cancel()
        if self._is_live:
            self._live.stop()
        if self._folder is None:
            return
        if kind is None:
            view = f"agentloop view {shlex.quote(str(self._folder))}"
            self.show(f"model saved in {self._folder}/model; curves and trajectories: {view}")
        else:
            self.show(f"stopped after step {self._step}{self._checkpoint()}; continue with: {self._continue_with}")

    def _checkpoint(self) -> str:
        """Describe the checkpoint from which a resumed run starts, if it is not that of the last step."""
        assert self._folder is not None
        newest = max(checkpoint_steps(RunFolder(self._folder).checkpoints), default=0)
        if newest == self._step:
            return ""
        return f", the newest checkpoint is of step {newest}" if newest else ", before the first checkpoint"

    def on_start(self, config: TrainingConfig, folder: Path, done: int) -> None:
        self._folder, self._hints, self._step = folder, Hints(folder), done
        if isinstance(config, RunConfig):
            self._episodes[Stage.ROLLOUT] = config.trajectories_per_step
        else:
            self._columns = _FINE_TUNING_COLUMNS
        self._progress.update(self._steps, total=config.run.steps, completed=done)
        resumed = f", resuming after step {done}" if done else ""
        self.show(f"run folder {folder}{resumed}")
        if done >= config.run.steps:
            of_all = f"all {done}" if done == config.run.steps else f"{done}, more than run.steps={config.run.steps},"
            self.show(f"{of_all} steps are done; to train further, {_way_to_go_on(config, folder)}")
        if isinstance(config, RunConfig) and not done:
            self.show(*(f"{name:16} {value}" for name, value in BatchSizes.of(config).lines().items()))

    def on_stage(self, step: int, stage: Stage) -> None:
        self._progress.reset(
            self._stage, description=f"step {step}: {stage}", total=self._episodes.get(stage), visible=True
        )

    def on_part(self, part: Part, seconds: float | None) -> None:
        if seconds is None:
            # Announce only slow starts.
            show = partial(self.show, f"starting the {part} ...")
            self._starting[part] = asyncio.get_running_loop().call_later(self._slow_start_seconds, show)
            return
        self._starting.pop(part).cancel()
        if seconds > self._slow_start_seconds:
            self.show(f"{part} ready after {seconds:.0f} s")

    def on_trajectory(self, step: int, trajectory: Trajectory) -> None:
        self._progress.advance(self._stage)
        self.show(*self._hints.of_trajectory(trajectory))

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        self._progress.update(self._steps, completed=step)
        self._rows = [*self._rows, (step, metrics)][-_SHOWN_STEPS:]
        if not self._is_live:
            cells = {name: self._cell(metrics, name) for name in self._columns}
            shown = [f"{name} {text}" for name, text in cells.items() if text]
            self.show(f"step {step}: {', '.join(shown)}")
        self.show(*self._hints.of_step(step, metrics))

    def show(self, *lines: str) -> None:
        """Print lines above the table."""
        _print(self._console, *lines)

    def _renderable(self) -> Group:
        shown = (name for name in self._columns if any(self._cell(row, name) for _, row in self._rows))
        table = Table("step", *shown, box=box.SIMPLE_HEAD, padding=0)  # all columns fit into 80 characters
        for step, row in self._rows:
            table.add_row(str(step), *(self._cell(row, str(column.header)) for column in table.columns[1:]))
        return Group(table, self._progress) if self._rows else Group(self._progress)

    def _cell(self, metrics: Mapping[str, float], name: str) -> str:
        key, shape = self._columns[name]
        return shape.format(metrics[key]) if key in metrics else ""


class EpisodeProgress:
    """Progress of a rollout; a context manager around the episodes."""

    def __init__(self, plays: str, *, total: int, shown: bool) -> None:
        """Show the progress of `total` episodes of the model `plays`; print nothing unless `shown`."""
        self._console = Console(quiet=not shown)
        self._bars = _bars(self._console)
        self._total = total
        self._episodes = self._bars.add_task("episodes", total=total)
        self._live = live(self._console, lambda: self._bars)
        self._is_live = shown and (self._console.is_terminal or self._console.is_jupyter)
        _print(self._console, f"playing: {plays}")

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live:
            self._live.stop()

    def advance(self, count: int = 1) -> None:
        """Count finished episodes."""
        self._bars.advance(self._episodes, count)

    def stopped(self, num_written: int, folder: Path, continue_with: str) -> None:
        """Say what a rollout that was stopped has written, and the command or arguments that resume it."""
        if num_written and folder.is_dir():
            _print(
                self._console,
                f"stopped: {num_written} of {self._total} episodes are in {folder}, without a summary; "
                f"view them: agentloop view {shlex.quote(str(folder))}\ncontinue with: {continue_with}",
            )


def _way_to_go_on(config: TrainingConfig, folder: Path) -> str:
    """Return how to train the model of a finished run further."""
    learner, updates = config.learner, schedule_updates(config)
    if learner.lr_schedule != "constant" and (updates or 0) <= config.run.steps * learner.mini_batches:
        ended = f"learner.lr_schedule={learner.lr_schedule} has ended"
        return f"start a new run in another folder with model={shlex.quote(str(folder))}, because {ended}"
    # The config here has the number of steps even if the user set run.epochs.
    return "raise run.steps, or run.epochs if that sets the length of the run"


def _bars(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console)


def _print(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
