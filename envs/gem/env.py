"""`Gem`: games and questions of GEM, and the rows of `data.train`.

data:
  train: agentloop.envs.gem.env:tasks
  train_options: {envs: "game:GuessTheNumber-v0-easy", size: 4096}
  eval: agentloop.envs.gem.env:tasks
  eval_options: {envs: "game:GuessTheNumber-v0-easy", size: 100, seed: 1000000}
env: {factory: gem}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.envs.workers.env import WorkerEnv
from agentloop.envs.workers.interpreters import interpreter_of
from agentloop.envs.workers.pool import options_of, rows_of
from agentloop.envs.workers.process import Program
from agentloop.errors import UserError

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset


class Gem(WorkerEnv):
    """Episode of an environment of GEM. Its reward is the sum over the turns."""

    package = "gem"
    worker = Path(__file__).with_name("worker.py")
    takes_cut_turns = True

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        allow_code: bool = False,
        python: str | None = None,
        processes: int = 1,
        step_timeout: float = 60.0,
    ) -> None:
        """Prepare the episode of a row of `tasks`. Raises `UserError` if the package is not installed.

        Environments that run the model's code outside a sandbox need `allow_code`. `WorkerEnv` explains `python`,
        `processes` and `step_timeout`.
        """
        super().__init__(
            row, toolset=toolset, reward=reward, python=python, processes=processes, step_timeout=step_timeout
        )
        if "env" not in row or "seed" not in row:
            raise UserError(
                f"The row {row.get('id')!r} has no env or no seed: use the rows of agentloop.envs.gem.env:tasks."
            )
        if (row["env"].startswith("code:") or row["env"] == "eval:CodeContest") and not allow_code:
            raise UserError(
                f"The environment {row['env']} runs the model's code without a sandbox, with all rights of this run. "
                "Use agentloop's reward code_tests instead, or set env.options.allow_code if that is safe here."
            )


def tasks(
    envs: str | Sequence[str] | Mapping[str, Mapping[str, Any] | None],
    *,
    size: int = 1000,
    seed: int = 0,
    python: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield `size` episodes as rows, with the seeds `seed`, `seed` + 1, ...

    Give held-out rows a seed that no training row has, such as 1000000.
    `envs` is an id such as game:Sokoban-v0-easy, a list of ids to take in turn, or id -> arguments of the environment.
    Raises `UserError` for environments that do not exist, lack data or refuse the arguments.
    """
    if size < 1:
        raise UserError(f"`size` of the gem tasks must be at least 1, got {size}.")
    given = options_of(envs, key="envs")
    if not given:
        raise UserError("`envs` of the gem tasks is empty: name an environment, such as game:Sokoban-v0-easy.")
    specs = {name: dict(options or {}) for name, options in given.items()}
    program = Program("gem", interpreter_of("gem", python), Gem.worker)
    yield from rows_of(program, {"envs": specs, "size": size, "seed": seed})
