"""`RunResult`: the results of a run in its folder; `read_trajectories` reads trajectories from files."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentloop.api.arguments import checked
from agentloop.errors import UserError

if TYPE_CHECKING:
    from agentloop.config.fine_tuning import FineTuningConfig
    from agentloop.config.run import RunConfig
    from agentloop.types.trajectory import Trajectory

_ROLLOUT = "trajectories.jsonl"


class RunResult:
    """The folder of a training run as Python objects. It may be passed instead of the path of the folder.

    Each property reads from disk when it is used, so it also works while the run continues.
    """

    def __init__(self, folder: Path) -> None:
        from agentloop.trainer.run.folder import RunFolder

        self._files = RunFolder(folder)

    def __repr__(self) -> str:
        return f"RunResult({str(self.folder)!r})"

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self._files.root

    @property
    def config(self) -> RunConfig | FineTuningConfig:
        """Config of the run, with absolute paths. Raises `UserError` if this version cannot read it."""
        from agentloop.config.fine_tuning import load_training_config

        return load_training_config(self._files.config_file)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Metrics of each step, in order; `pandas.DataFrame(run.metrics)` makes a table of them.

        Every line has `step`; step 0 is the evaluation before training. Other keys are present if the step measured
        them, such as `reward/mean` (of training episodes), `eval/reward/mean` and `time/rollout` (seconds).
        """
        return self._files.read_metrics()

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Step -> folder of its checkpoint, oldest first; `run.keep_last` of them are kept."""
        from agentloop.trainer.run.checkpoints import checkpoint_steps
        from agentloop.trainer.run.folder import step_name

        folder = self._files.checkpoints
        return {step: folder / step_name(step) for step in checkpoint_steps(folder)}

    @property
    def model(self) -> Path:
        """Folder of the trained model in Hugging Face format.

        If the run has not ended, this exports the model of the newest checkpoint. Raises `UserError` if the run has no
        checkpoint.
        """
        from agentloop.trainer.run.export import trained_model

        return trained_model(self.folder)[0]

    @checked
    def trajectories(self, step: int | None = None, *, split: Literal["train", "eval"] = "train") -> list[Trajectory]:
        """Return the training trajectories of a step, or the trajectories of its evaluation (`split="eval"`).

        `step` defaults to the last step that has any. All are held in memory. Raises `UserError`, which lists the steps
        that have trajectories, if the step has none.
        """
        from agentloop.trainer.run.folder import step_of

        files = self._files.trajectories.glob(f"{'step' if split == 'train' else 'eval'}_*.jsonl.gz")
        by_step = {step_of(path): path for path in sorted(files)}
        chosen = step if step is not None else max(by_step, default=None)  # type: ignore[type-var]
        if chosen not in by_step:
            of_step = "" if step is None else f" of step {step}"
            known = ", ".join(map(str, by_step)) or "none"
            raise UserError(f"{self.folder} has no {split} trajectories{of_step}. Steps with trajectories: {known}.")
        return read_trajectories(by_step[chosen])

    @checked
    def export(
        self,
        output: str | PathLike[str],
        *,
        step: int | None = None,
        dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None,
    ) -> Path:
        """Write the model of a checkpoint as a Hugging Face folder, and return the folder.

        Args:
            output: New folder.
            step: Step of a checkpoint; None: the newest.
            dtype: Data type of the weights, "float32", "bfloat16", "float16" or "auto" (as the base model); None:
                `learner.save_dtype` of the run.

        Raises:
            UserError: The folder exists already, or the run has no such checkpoint.
        """
        from agentloop.trainer.run.export import export

        target = Path(output).expanduser()
        export(self.folder, target, step=step, dtype=dtype)
        return target


@checked
def load_run(folder: str | PathLike[str]) -> RunResult:
    """Return the results of a training run, which may still be running.

    Raises `UserError` if `folder` is not the folder of a run.
    """
    from agentloop.trainer.run.export import is_run

    path = Path(folder).expanduser()
    if is_run(path):
        return RunResult(path)
    is_rollout = (path / _ROLLOUT).is_file()
    fix = "It contains a rollout: use agentloop.read_trajectories." if is_rollout else "Correct the path."
    raise UserError(f"{path} is not the folder of a training run: it has no config.yaml and checkpoints. {fix}")


@checked
def read_trajectories(path: str | PathLike[str]) -> list[Trajectory]:
    """Return the trajectories in a file that a run or a rollout wrote, or in the folder of a rollout.

    All are held in memory; `agentloop.types.trajectory_io.read_jsonl` yields one at a time. Each has token ids, loss
    mask, logprobs and policy versions, arrays of shape [num_tokens], and the messages, reward and stop reason of the
    episode. An incomplete last line, as a killed run leaves it, is skipped.

    Raises `UserError` if the file does not exist, or if a line is not a trajectory; the message has the line number.
    """
    from agentloop.types.trajectory_io import read_jsonl

    file = Path(path).expanduser()
    if (file / _ROLLOUT).is_file():
        file = file / _ROLLOUT
    if not file.is_file():
        raise UserError(
            f"{file} is not a file of trajectories. Runs write them to trajectories/step_<n>.jsonl.gz and "
            f"eval_<n>.jsonl.gz, rollouts to {_ROLLOUT}."
        )
    return list(read_jsonl(file))
