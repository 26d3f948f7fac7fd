"""`HarborTask`: a task folder, read from its files and task.toml.

task.toml   instruction.md   environment/   tests/test.sh   solution/solve.sh
steps/NAME/{instruction.md, tests/, solution/, workdir/setup.sh}      of a task of several steps
"""

from __future__ import annotations

import logging
import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from agentloop.envs.harbor.tasks.config import Artifact, StepConfig, TaskConfig, VerifierMode, unknown_keys
from agentloop.envs.harbor.tasks.machine import EnvironmentConfig, User
from agentloop.errors import UserError

_logger = logging.getLogger(__name__)
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
_told: set[str] = set()
"""Unknown keys that a warning has named."""


@dataclass(frozen=True, slots=True)
class VerifierBox:
    """The box of a separate verifier."""

    environment: EnvironmentConfig
    """Its machine, except the image."""
    image: str | None
    """Name of its image; None builds the Dockerfile in `folder`."""
    folder: Path
    has_tests: bool
    """Whether its image holds /tests; else they are uploaded."""


@dataclass(frozen=True)
class HarborTask:
    """A task. `HarborTask.load` reads and checks it."""

    folder: Path
    config: TaskConfig

    @classmethod
    def load(cls, folder: str | Path) -> HarborTask:
        """Read a task folder, and warn once about unknown keys of task.toml.

        Raises `UserError` if a file is missing, or task.toml is invalid.
        """
        folder = Path(folder).expanduser().resolve()
        path = folder / "task.toml"
        if not path.is_file():
            raise UserError(f"{folder} is not a Harbor task: it has no task.toml.")
        try:
            config = TaskConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not valid TOML: {error}.") from error
        except ValidationError as error:
            raise UserError(f"{path}: {_first_problem(error)}") from error
        for key in unknown_keys(config):
            if key not in _told:
                _told.add(key)
                _logger.warning("%s has the key %r, which agentloop does not know. It has no effect.", path, key)
        task = cls(folder, config)
        task._check()
        return task

    @property
    def name(self) -> str:
        """org/name of [task], else the name of the folder."""
        return self.config.task.name if self.config.task is not None else self.folder.name

    @cached_property
    def steps(self) -> tuple[TaskStep, ...]:
        """The steps of the task: one, named "", if task.toml has none."""
        return tuple(TaskStep(self, each) for each in self.config.steps or [StepConfig.model_construct(name="")])

    @property
    def has_steps(self) -> bool:
        """Whether task.toml names steps."""
        return bool(self.config.steps)

    @property
    def environment(self) -> Path:
        """Folder that the image is built from."""
        return self.folder / "environment"

    def _check(self) -> None:
        if not self.config.environment.docker_image and not self.environment.is_dir():
            raise UserError(f"{self.folder} has no folder environment, and task.toml names no docker_image: add one.")
        for step in self.steps:
            step.check()


@dataclass(frozen=True)
class TaskStep:
    """A step, or the whole of a task without steps."""

    task: HarborTask
    config: StepConfig

    @property
    def folder(self) -> Path:
        """Folder with the files of the step."""
        return self.task.folder / "steps" / self.config.name if self.config.name else self.task.folder

    @cached_property
    def instruction(self) -> str:
        """The text for the agent, without canary lines."""
        return without_canary((self.folder / "instruction.md").read_text(encoding="utf-8"))

    @property
    def agent_timeout(self) -> float | None:
        """Time limit of the agent in seconds; None means no limit."""
        own = self.config.agent.timeout_sec
        return self.task.config.agent.timeout_sec if own is None else own

    @property
    def agent_user(self) -> User:
        """User of the agent; None means the image's."""
        own = self.config.agent.user
        return self.task.config.agent.user if own is None else own

    @property
    def verifier_timeout(self) -> float:
        """Time limit of the tests in seconds."""
        return (self.config if self.config.name else self.task.config).verifier.timeout_sec

    @property
    def verifier_user(self) -> User:
        """User of the tests; None means the image's."""
        own = self.config.verifier.user
        return self.task.config.verifier.user if own is None else own

    @property
    def verifier_env(self) -> dict[str, str]:
        """Variables of the tests, with references to those of this machine."""
        return {**self.task.config.verifier.env, **self.config.verifier.env}

    @property
    def is_separate(self) -> bool:
        """Whether the tests have a separate box."""
        own = self.config.verifier.mode
        return (self.task.config.verifier.mode if own is None else own) is VerifierMode.SEPARATE

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Paths of the box to keep."""
        return (*self.task.config.artifacts, *self.config.artifacts)

    @property
    def test_folders(self) -> tuple[Path, ...]:
        """Folders that become /tests, later ones over earlier ones."""
        folders = dict.fromkeys((self.task.folder / "tests", self.folder / "tests"))
        return tuple(each for each in folders if each.is_dir())

    @property
    def solution(self) -> Path | None:
        """Folder with the solve.sh that solves the step; None if there is none."""
        folders = (self.folder / "solution", self.task.folder / "solution")
        return next((each for each in folders if (each / "solve.sh").is_file()), None)

    @property
    def verifier_box(self) -> VerifierBox | None:
        """The box of the tests; None if they run in the agent's."""
        if not self.is_separate:
            return None
        task, own = self.task.config, self.config.verifier.environment
        environment = own or task.verifier.environment or task.environment
        candidates = [(task.verifier.environment, self.task.folder / "tests")]
        if self.config.name:
            candidates.insert(0, (own, self.folder / "tests"))
        for candidate, folder in candidates:
            if candidate is not None and candidate.docker_image:
                return VerifierBox(environment, candidate.docker_image, folder, True)
            if (folder / "Dockerfile").is_file():
                return VerifierBox(environment, None, folder, True)
        return VerifierBox(environment, task.environment.docker_image, self.task.environment, False)

    def check(self) -> None:
        """Raise `UserError` if a file of the step is missing."""
        if not (self.folder / "instruction.md").is_file():
            raise UserError(f"{self.folder} has no instruction.md: write what the agent has to do.")
        try:
            _ = self.instruction
        except UnicodeDecodeError as error:
            raise UserError(f"{self.folder}/instruction.md is not UTF-8 ({error}): write it in UTF-8.") from error
        for folder in {self.folder, *self.test_folders, self.task.folder / "solution"}:
            _check_inside(self.task.folder, folder)
        box = self.verifier_box
        if (box is None or not box.has_tests) and not any((each / "test.sh").is_file() for each in self.test_folders):
            raise UserError(f"{self.folder} has no tests/test.sh: write the script that writes the reward.")


def without_canary(text: str) -> str:
    """Return an instruction without leading canary lines and the blank lines after them."""
    lines = text.split("\n")
    first = 0
    while first < len(lines) and _CANARY.fullmatch(lines[first].strip()):
        first += 1
    while first < len(lines) and not lines[first].strip():
        first += 1
    return "\n".join(lines[first:])


def _check_inside(task: Path, folder: Path) -> None:
    """Raise `UserError` if a link leads out of the task: uploads would contain files of this machine."""
    for path in (folder, *folder.rglob("*")) if folder.is_dir() else ():
        if not path.resolve().is_relative_to(task):
            raise UserError(f"{path} leads out of the task: replace the link with a copy of the file.")


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the file"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}."
