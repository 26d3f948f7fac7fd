"""`train`: runs training from a config to its result, for the command line and for Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentloop.api.arguments import checked
from agentloop.api.recipe import claimed_folder, new_folder, run_folders, run_name
from agentloop.api.result import RunResult
from agentloop.errors import UserError
from agentloop.process.blocking import run_blocking
from agentloop.process.quiet import quiet_libraries
from agentloop.registry.extras import naming_extras

if TYPE_CHECKING:
    from agentloop.api.config import ConfigSource
    from agentloop.config.run import RunConfig, TrainingConfig
    from agentloop.trainer.schedule.observers import Observer

    C = TypeVar("C", bound=TrainingConfig)


@checked
def train(config: ConfigSource, *, resume: bool = False, progress: bool = True, **overrides: Any) -> RunResult:
    """Train a model, and return the result of the run.

        run = agentloop.train("tiny", run={"steps": 10}, learner={"lr": 4e-4})
        run = agentloop.train("weather.yaml", env={"tools": [Weather], "reward": reward})

    The call returns when the run has ended, also in a notebook. If it is interrupted or fails, it prints the call that
    resumes the run from its last checkpoint.

    Args:
        config: A YAML file, a folder with a config.yaml, the name of a recipe, a `RunConfig`, or a mapping of its keys.
        resume: Resume the run in `run.folder`, or else the newest run below runs/ with this config.
        progress: Show steps, stages and hints; False prints nothing.
        **overrides: Sections of the config with the keys to set, `run={"steps": 3}`, or dotted keys with their whole
            values, `**{"run.steps": 3}`. Tools, rewards, environments and datasets may be classes and functions, even
            those of a notebook. Relative paths are relative to the current folder.

    Returns:
        The run, as `load_run` returns it.

    Raises:
        UserError: The config is invalid, a package is missing, or the run cannot continue; the message says what to do.
        KeyboardInterrupt: Ctrl-C, or an interrupt of a notebook's kernel, after all resources are closed.
    """
    with naming_extras():
        from agentloop.api.config import config_of

        def call(folder: Path) -> str:
            return f"agentloop.train({str(folder)!r}, run={{'folder': {str(folder)!r}}})"

        loaded = config_of(config, overrides)
        return train_config(loaded, run_name(config), resume=resume, progress=progress, continue_with=call)


def train_config(
    config: RunConfig, name: str, *, resume: bool, continue_with: Callable[[Path], str], progress: bool = True
) -> RunResult:
    """Train with a config, in a new folder named `name` unless the config has one.

    `continue_with` returns the command or call that resumes the run in a folder.
    """
    quiet_libraries()
    announce_libraries(shown=progress)
    from agentloop.trainer.run.train import placed, train

    config, placement = placed(config)
    lines = [f"{name:16} {value}" for name, value in placement.items()]
    return start_or_resume(
        train, config, name, resume=resume, continue_with=continue_with, progress=progress, lines=lines
    )


def announce_libraries(*, shown: bool) -> None:
    """Print that libraries are loading, which takes seconds, unless they are loaded already or not installed."""
    if shown and "torch" not in sys.modules and find_spec("torch") is not None:
        print("loading PyTorch and transformers ...", flush=True)


def start_or_resume(
    start: Callable[[C, Path, Observer], Coroutine[Any, Any, object]],
    config: C,
    name: str,
    *,
    resume: bool,
    continue_with: Callable[[Path], str],
    progress: bool,
    lines: Sequence[str] = (),
) -> RunResult:
    """Run `start(config, folder, observer)` to its end, with its progress on the terminal below `lines`."""
    from agentloop.api.progress import RunProgress
    from agentloop.trainer.run.timeline import watching
    from agentloop.trainer.schedule.observers import Observer

    is_new = not resume and not config.run.folder
    with claimed_folder(name) if is_new else nullcontext(folder_of(config, name, resume=resume)) as folder:
        shown = RunProgress(continue_with=continue_with(folder)) if progress else None
        if shown is not None:
            shown.show(*lines)
        with (
            shown or nullcontext(Observer()) as observer,
            watching(observer, timeline=config.profiler.timeline) as watched,
        ):
            run_blocking(start, config, folder, watched)
    return RunResult(folder)


def folder_of(config: TrainingConfig, name: str, *, resume: bool) -> Path:
    """Return the folder of a run: `run.folder`, or else a new one.

    With `resume` it is the folder of the run to resume. Raises `UserError` if there is none.
    """
    if resume:
        return _folder_to_resume(config, name)
    return Path(config.run.folder).expanduser() if config.run.folder else new_folder(name)


def _folder_to_resume(config: TrainingConfig, name: str) -> Path:
    from agentloop.trainer.run.folder import RunFolder
    from agentloop.trainer.run.resume import changed_keys

    if config.run.folder:
        folder = folder_of(config, name, resume=False)
        if not RunResult(folder).checkpoints:
            raise UserError(f"{folder} has no checkpoint to resume from. Omit resume to start a new run in it.")
        return folder
    # With run.epochs the stored number of steps follows from the number of tasks.
    open_keys = ("run.steps", "run.epochs") if config.run.epochs is not None else ()
    resolved = config.model_dump(mode="json")
    for folder in (path for path in run_folders(name) if RunResult(path).checkpoints):
        before = RunFolder(folder).read_config()
        if before is not None and not [
            key for key in changed_keys(before, resolved, type(config)) if not key.startswith(open_keys)
        ]:
            return folder
    raise UserError(
        f"No run of {name} with this config has a checkpoint below {Path('runs').absolute()}. Set run.folder to the "
        "folder of the run, or omit resume to start a new one."
    )
