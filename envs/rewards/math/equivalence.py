"""`MathEquivalence`: compares answers mathematically, with the library math-verify."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards.base import Outcome, Reward, answer_of
from agentloop.envs.rewards.texts import last_boxed
from agentloop.errors import UserError
from agentloop.process.worker_pool import WorkerDiedError, Workers

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_SCRIPT = Path(__file__).with_name("worker.py")
_MAX_CHARS = 2000
"""Number of last characters of the final text to parse, because parsing takes time."""


class MathEquivalence(Reward):
    r"""Reward of 1.0 if the final answer is mathematically equal to the row's (1/2, \frac{1}{2}, 0.5), else 0.0.

    Comparisons run in separate processes, because an answer such as 9^{9^{9^9}} keeps sympy busy for hours in C code
    that ignores signals. After the timeout the process is killed, the reward is 0, and `timed_out` is logged.
    """

    def __init__(self, *, boxed: bool = False, timeout: float = 5.0, workers: int = 2) -> None:
        r"""Prepare `workers` concurrent comparisons of `timeout` seconds. Raises `UserError` without math-verify.

        With `boxed`, only the last `\boxed{...}` counts. Otherwise the library searches for the answer.
        """
        if find_spec("math_verify") is None:
            raise UserError("The reward math needs math-verify: pip install 'agentloop[math]'.")
        if timeout <= 0 or workers < 1:
            raise UserError("timeout and workers of the reward math must be above 0.")
        self._boxed = boxed
        self._seconds = timeout
        self._workers = Workers(_SCRIPT, workers, hello={"gold": "1", "text": "1"})

    async def shutdown(self) -> None:
        await self._workers.close()

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Outcome:
        """Judge the answer. Raises `ValueError` if math-verify cannot read the row's answer."""
        text = trajectory.final_text[-_MAX_CHARS:]
        if self._boxed:
            box = last_boxed(text)
            if box is None:
                return 0.0
            text = rf"\boxed{{{box}}}"
        return await self.compare(text, answer_of(task))

    async def compare(self, text: str, gold: Any) -> Outcome:
        """Return whether `text` equals `gold`, which is a number, a string or a list of alternatives."""
        golds = [str(each) for each in gold] if isinstance(gold, list | tuple) else [str(gold)]
        for each in golds:
            try:
                answer = await self._workers.ask({"gold": each, "text": text}, seconds=self._seconds)
            except (TimeoutError, WorkerDiedError):
                return {"reward": 0.0, "timed_out": 1.0}
            if not answer["readable"]:
                raise ValueError(f"math-verify cannot read the row's answer {each!r}")
            if answer["equal"]:
                return {"reward": 1.0, "timed_out": 0.0}
        return {"reward": 0.0, "timed_out": 0.0}
