"""`ReasoningGym`: questions of reasoning-gym with their own verifiers, and the rows of `data.train`.

data:
  train: agentloop.envs.reasoning_gym.env:tasks
  train_options: {datasets: [leg_counting, chain_sum], size: 4096}
  eval: agentloop.envs.reasoning_gym.env:tasks
  eval_options: {datasets: [leg_counting, chain_sum], size: 200, seed: 1000000}
env: {factory: reasoning_gym}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.envs.tool_env import ToolEnv
from agentloop.envs.workers.interpreters import interpreter_of
from agentloop.envs.workers.pool import check_limits, options_of, pool_of, rows_of
from agentloop.envs.workers.process import Program
from agentloop.errors import UserError, shown
from agentloop.registry.options import check_options
from agentloop.types.messages import text_of

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory

_NAME = "reasoning_gym"
_SPEC = ("weight", "level", "config")


class ReasoningGym(ToolEnv):
    """Question of reasoning-gym, judged by the verifier of its data set: a score from 0 to 1.

    Tools of `env.tools` are allowed. An `env.reward` is added to the score.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        tag: str | None = "answer",
        python: str | None = None,
        processes: int = 1,
        step_timeout: float = 60.0,
    ) -> None:
        """Prepare the question of a row of `tasks`. Raises `UserError` if the package is not installed.

        The answer is the text in the last `<tag>...</tag>` of the last turn, or the whole turn if `tag` is None. The
        package runs in `python`, by default that of `agentloop envs install`, in at most `processes` processes of each
        rollout worker. A verifier that takes longer than `step_timeout` seconds fails.
        """
        super().__init__(row, toolset=toolset, reward=reward)
        check_limits(_NAME, processes=processes, step_timeout=step_timeout)
        if "source" not in row:
            raise UserError(
                f"The row {row.get('id')!r} has no source: use the rows of agentloop.envs.reasoning_gym.env:tasks."
            )
        self._program = program(python)
        self._tag = tag
        self._processes = processes
        self._seconds = step_timeout

    async def score(self, trajectory: Trajectory) -> float:
        """Return the score of the answer. Raises `EnvError` if the verifier fails."""
        question = text_of(self.task["messages"][-1]["content"])
        pool = pool_of(self._program, processes=self._processes)
        source = {"source": self.task["source"], "question": question}
        async with pool.episode(source, seconds=self._seconds) as item:
            found: float = await item.step({"text": trajectory.final_text, "tag": self._tag})
        trajectory.metrics[f"reward/score/{self.task['dataset']}"] = found
        return found + await super().score(trajectory)


def tasks(
    datasets: str | Sequence[str] | Mapping[str, Mapping[str, Any] | None],
    *,
    size: int = 1000,
    seed: int = 0,
    level: int | None = None,
    system: str | None = "default",
    python: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield `size` questions as rows: of one data set, or of several mixed by the package's composite.

    `datasets` is a name, a list of names, or name -> {weight: 2.0, level: 3, config: {max_terms: 6}}. `level` is the
    curriculum level of data sets that name no other; without one, a data set has its default difficulty.
    Row k has the seed `seed` + k, as in the package, and equal seeds give equal questions: give held-out rows a seed
    that no training row has, such as 1000000. `system` is the system message, or "default" for the package's own.
    Raises `UserError` for unknown names and options.
    """
    if size < 1:
        raise UserError(f"`size` of the reasoning_gym tasks must be at least 1, got {size}.")
    given = options_of(datasets, key="datasets")
    specs: dict[str, dict[str, Any]] = {}
    for name, spec in given.items():
        check_options(spec or {}, _SPEC, of=f"data set {name!r} of reasoning_gym", key="train_options.datasets")
        _check_weight_and_level(name, spec or {}, level)
        if taken := sorted({"seed", "size"}.intersection((spec or {}).get("config") or {})):
            raise UserError(
                f"`config` of the data set {name!r} has {' and '.join(taken)}, which would have no effect: set "
                "seed and size beside datasets, as in data.train_options.seed."
            )
        specs[name] = {"level": level, **(spec or {})}
    if not specs:
        raise UserError("`datasets` of the reasoning_gym tasks is empty: name a data set, such as leg_counting.")
    yield from rows_of(program(python), {"datasets": specs, "size": size, "seed": seed, "system": system})


def _check_weight_and_level(name: str, spec: Mapping[str, Any], default_level: object) -> None:
    weight, level = spec.get("weight", 1.0), spec.get("level", default_level)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise UserError(f"`weight` of the data set {name!r} must be a number above 0, got {shown(weight)}.")
    if level is not None and (isinstance(level, bool) or not isinstance(level, int) or level < 0):
        raise UserError(f"`level` of the data set {name!r} must be an integer of at least 0, got {shown(level)}.")


def program(python: str | None = None) -> Program:
    """Return the worker of reasoning-gym. Raises `UserError` if the package is not installed."""
    return Program(_NAME, interpreter_of(_NAME, python), Path(__file__).with_name("worker.py"))
