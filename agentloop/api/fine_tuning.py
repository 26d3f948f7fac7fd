"""`sft` and `dpo`: training on given answers, for the command line and for Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.api.arguments import checked
from agentloop.api.recipe import Method, run_name
from agentloop.api.training import announce_libraries, start_or_resume
from agentloop.process.quiet import quiet_libraries
from agentloop.registry.extras import naming_extras

if TYPE_CHECKING:
    from agentloop.api.config import FineTuningSource
    from agentloop.api.result import RunResult
    from agentloop.config.fine_tuning import FineTuningConfig


@checked
def sft(config: FineTuningSource, *, resume: bool = False, progress: bool = True, **overrides: Any) -> RunResult:
    """Train a model on conversations (supervised fine-tuning), and return the result of the run.

        run = agentloop.sft({"model": "org/name", "data": {"train": "conversations.jsonl"}})
        agentloop.train("recipe", model=run.folder)

    Only assistant turns carry loss. If the call is interrupted or fails, it prints the call that resumes the run from
    its last checkpoint.

    Args:
        config: A YAML file, a folder with a sft.yaml, the name of a recipe that has one, a `FineTuningConfig`, or a
            mapping of its keys.
        resume: Resume the run in `run.folder`, or else the newest run below runs/ with this config.
        progress: Show steps and stages; False prints nothing.
        **overrides: Sections and keys of the config to set, as for `train`.

    Returns:
        The run, as `load_run` returns it.

    Raises:
        UserError: The config is invalid, a package is missing, or the run cannot continue; the message says what to do.
        KeyboardInterrupt: Ctrl-C, or an interrupt of a notebook's kernel, after all resources are closed.
    """
    return _fine_tune("sft", config, overrides, resume=resume, progress=progress)


@checked
def dpo(config: FineTuningSource, *, resume: bool = False, progress: bool = True, **overrides: Any) -> RunResult:
    """Train a model on pairs of a better and a worse answer (DPO, arXiv 2305.18290), and return the result of the run.

    The reference is the model that the run starts from. A folder or recipe needs a dpo.yaml. Otherwise like `sft`.
    """
    return _fine_tune("dpo", config, overrides, resume=resume, progress=progress)


def _fine_tune(
    method: Method, config: FineTuningSource, overrides: dict[str, Any], *, resume: bool, progress: bool
) -> RunResult:
    with naming_extras():
        from agentloop.api.config import fine_tuning_config_of

        def call(folder: Path) -> str:
            return f"agentloop.{method}({str(folder)!r}, run={{'folder': {str(folder)!r}}})"

        loaded = fine_tuning_config_of(config, overrides, method)
        name = run_name(config, method)
        return fine_tune_config(loaded, name, resume=resume, progress=progress, continue_with=call)


def fine_tune_config(
    config: FineTuningConfig, name: str, *, resume: bool, continue_with: Callable[[Path], str], progress: bool = True
) -> RunResult:
    """Train on given answers with a config, in a new folder named `name` unless the config has one."""
    quiet_libraries()
    announce_libraries(shown=progress)
    from agentloop.trainer.fine_tuning.train import fine_tune

    return start_or_resume(fine_tune, config, name, resume=resume, continue_with=continue_with, progress=progress)
