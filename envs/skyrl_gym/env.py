"""`SkyRLGym`: text environments of skyrl-gym, with SkyRL's rows.

data: {train: train.parquet, eval: validation.parquet}      # prompt, env_class, reward_spec, extra_info, ...
env: {factory: skyrl_gym}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.envs.base import Observation
from agentloop.envs.workers.env import WorkerEnv
from agentloop.envs.workers.pool import check_starts
from agentloop.errors import UserError

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset

_RUN_CODE = ("lcb", "searchcode")
"""Environments that run the model's code."""


class SkyRLGym(WorkerEnv):
    """Episode of an environment of skyrl-gym. Its reward is the sum over the turns."""

    package = "skyrl_gym"
    worker = Path(__file__).with_name("worker.py")
    takes_cut_turns = True
    needs_prompt = True

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        id: str | None = None,
        config: Mapping[str, Any] | None = None,
        allow_code: bool = False,
        python: str | None = None,
        processes: int = 1,
        step_timeout: float = 60.0,
    ) -> None:
        """Prepare an episode. Raises `UserError` if the package is not installed, or no environment is named.

        `id` names the environment, or a module that registers it and its name (module:name); the default is the row's
        `env_class`. `config` changes settings of the environment. Environments that run the model's code outside a
        sandbox need `allow_code`. `WorkerEnv` explains `python`, `processes` and `step_timeout`.
        """
        super().__init__(
            row, toolset=toolset, reward=reward, python=python, processes=processes, step_timeout=step_timeout
        )
        self._id = id or row.get("env_class")
        if self._id is None:
            raise UserError(f"The row {row.get('id')!r} has no env_class: add the column, or set env.options.id.")
        if self._id.rpartition(":")[2] in _RUN_CODE and not allow_code:
            raise UserError(
                f"The environment {self._id} runs the model's code without a sandbox, with all rights of this run. "
                "Use agentloop's tools and its reward code_tests instead, or set env.options.allow_code if that is "
                "safe here."
            )
        self._config = config or {}

    @classmethod
    def check_rows(cls, rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        """Begin an episode of each environment that the rows name. Raises `UserError`."""
        envs = [cls(row, **options) for row in {row.get("env_class"): row for row in rows}.values()]
        starts = {f"the environment {env._id}": env.arguments() for env in envs}
        check_starts(envs[0]._program, starts, seconds=envs[0]._seconds)

    def arguments(self) -> Mapping[str, Any]:
        extras = {name: value for name, value in self.task.items() if name not in ("messages", "prompt")}
        return {"env": self._id, "config": dict(self._config), "prompt": self.task["messages"], "extras": extras}

    async def reset(self) -> Observation:
        """Return the prompt of the environment, which may differ from the row's."""
        observation = await super().reset()
        return Observation(observation.messages[len(self.task["messages"]) :])
