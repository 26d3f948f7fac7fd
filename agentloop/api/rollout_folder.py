"""`RolloutFolder`: the files of a rollout. A rollout that was stopped goes on in its folder.

trajectories.jsonl    one line for each episode, in the order in which they ended
summary.json          the model and the metrics of all episodes, written at the end
rollout.json          the config, a digest of the weights, and which tasks are played how often
rollout.lock          the process that writes to this folder
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentloop.api.trajectory_writer import output_errors
from agentloop.config.run import RunConfig
from agentloop.engines import ENGINES
from agentloop.errors import UserError
from agentloop.process import file_lock
from agentloop.process.atomic import atomic_file, write_text
from agentloop.trainer.run.export import is_run
from agentloop.trainer.run.folder import check_writable
from agentloop.trainer.run.resume import changed_keys, changed_length
from agentloop.trainer.schedule.failures import is_failed
from agentloop.types.plain_data import ImageTable, to_plain
from agentloop.types.requests import Split
from agentloop.types.trajectory import Trajectory
from agentloop.types.trajectory_io import read_jsonl, write_jsonl

_MATTER = ("model", "env", "rendering", "limits", "sampling", "run.seed")
"""Keys of a config, each with all keys below it, with which episodes of a rollout would differ."""
_ADDRESS = re.compile(" at 0x[0-9a-f]+")
"""Part of the text of a function or of an object without a text of its own, which differs in each process."""


class RolloutFolder:
    """A folder with one rollout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trajectories = root / "trajectories.jsonl"
        self._summary = root / "summary.json"
        self._asked = root / "rollout.json"

    @property
    def is_begun(self) -> bool:
        """Whether a rollout was started in the folder."""
        return self._asked.is_file()

    def check(self, *, resume: bool) -> None:
        """Raise `UserError` unless a rollout can be written to the folder, which may be missing if it is a new one."""
        if not resume:
            self._check_unused()
        elif not self.is_begun:
            raise UserError(
                f"{self.root} has no rollout to resume: it has no {self._asked.name}. Omit resume to start a new one."
            )
        if is_run(self.root):
            raise UserError(f"{self.root} is the folder of a training run. Set output to another folder.")
        try:
            check_writable(self.root)
        except OSError as error:
            raise UserError(
                f"{self.root} cannot be written to: {error.strerror}. Set output to another folder."
            ) from error

    @contextmanager
    def locked(self, *, resume: bool) -> Iterator[None]:
        """Keep other rollouts from writing to an existing folder. Raises `UserError` if another one writes to it.

        Unless it resumes, a rollout that wrote to it meanwhile is refused, too: both may have begun when it was empty.
        """

        def in_use(who: str, advice: str) -> UserError:
            return UserError(f"Another rollout writes to {self.root} ({who}). Set output to another folder{advice}.")

        with file_lock.locked(self.root / "rollout.lock", in_use):
            if not resume:
                self._check_unused()
            yield

    def _check_unused(self) -> None:
        if self.trajectories.exists():
            raise UserError(
                f"{self.root} already has the trajectories of another rollout. Set output to another folder, or resume "
                "that rollout if it was stopped."
            )

    def begin(self, config: RunConfig, split: Split, samples: int, weights: str) -> None:
        """Write what is asked for, so that the rollout can be resumed. `weights` is a digest of the model."""
        stored = config.model_dump(mode="json")
        options = stored["engine"]["options"]  # those of a service may have a key
        stored["engine"]["options"] = {name: options[name] for name in ("max_model_len",) if name in options}
        asked = {"tasks": split, "samples": samples, "config": stored, "weights": weights, "body": _body_digest(config)}
        with output_errors(self.root):
            self._summary.unlink(missing_ok=True)  # that of fewer episodes
            write_text(self._asked, json.dumps(asked, indent=1) + "\n")

    def changes(self, config: RunConfig, split: Split, samples: int) -> list[str]:
        """Return 'what: old -> new' of each setting with which episodes would not be those of the stored rollout."""
        before = self._read_asked()
        new = {"tasks": split, "samples": samples}
        found = [f"{name}: {before[name]} -> {value}" for name, value in new.items() if before[name] != value]
        changed = changed_keys(before["config"], config.model_dump(mode="json"))
        matter = tuple(f"{key}{end}" for key in _MATTER for end in ".:")
        found += [each for each in changed if each.startswith(matter)]
        if before["body"] != _body_digest(config):
            found.append("engine.options.extra_body was changed")
        if ENGINES.get(config.engine.name).read_turn is None:  # services have models of their own
            found += changed_length(before["config"], config)
        return found

    def keep_played(
        self,
        config: RunConfig,
        split: Split,
        samples: int,
        weights: str,
        tasks: Sequence[Mapping[str, Any]],
        count: int,
    ) -> list[Trajectory]:
        """Return the episodes that need not be played again, and remove the failed ones from the file.

        The first `count` of the tasks are to be played. Raises `UserError` if the stored rollout is another one.
        """
        if changes := self.changes(config, split, samples):
            raise UserError(
                f"The rollout in {self.root} was started with other settings: {'; '.join(changes)}. Set them back to "
                "resume it, or set output to another folder."
            )
        if self._read_asked()["weights"] != weights:
            raise UserError(
                f"The weights in {config.model} are not those that played the rollout in {self.root}: they were "
                "replaced. Restore them to resume it, or set output to another folder."
            )
        played = list(read_jsonl(self.trajectories)) if self.trajectories.exists() else []
        kept = [trajectory for trajectory in played if not is_failed(trajectory)]
        for trajectory in kept:
            row = int(trajectory.group_id.rpartition("-")[2])  # a rollout numbers its groups as its tasks
            self._check_task(row, trajectory.task, tasks, count)
        if len(kept) < len(played):
            with output_errors(self.root), atomic_file(self.trajectories, durable=True) as file:
                write_jsonl(file, kept)
        return kept

    def _check_task(self, row: int, played: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], count: int) -> None:
        if row >= count:
            raise UserError(
                f"The rollout in {self.root} has played task {row + 1}, but now only {count} of the tasks are to be "
                "played. Raise limit, or set output to another folder."
            )
        # An environment may have added values.
        changed = [name for name, value in tasks[row].items() if _as_text(value) != _as_text(played.get(name))]
        if changed:
            raise UserError(
                f"The rollout in {self.root} has played another task {row + 1}: the dataset was changed (columns of "
                f"the task that differ: {', '.join(changed)}). Restore it, or set output to another folder."
            )

    def _read_asked(self) -> dict[str, Any]:
        try:
            asked = json.loads(self._asked.read_text(encoding="utf-8"))
            return {name: asked[name] for name in ("tasks", "samples", "config", "weights", "body")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self._asked} cannot be read ({error}), so the rollout cannot be resumed. Set output to another "
                "folder."
            ) from error

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary. Raises `UserError` if it cannot be written."""
        with output_errors(self.root):
            write_text(self._summary, json.dumps(summary, indent=1) + "\n")


def _body_digest(config: RunConfig) -> str:
    """Return a digest of what is added to the requests to a service, such as its effort of reasoning."""
    body = config.engine.options.get("extra_body")
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def _as_text(value: Any) -> str:
    """Return a value of a task as text that is the same after it was written, read, and in another process."""
    images = ImageTable()
    text = json.dumps(to_plain(value, images))
    return _ADDRESS.sub("", text) + json.dumps(images.as_base64())
