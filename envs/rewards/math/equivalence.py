"""`MathEquivalence`: the answer says the same in mathematics, by the library math-verify."""

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
"""Of the end of the final text, where the answer stands; what is parsed takes time with its length."""


class MathEquivalence(Reward):
    r"""1.0 where the final text's answer equals the row's in mathematics (1/2, \frac{1}{2}, 0.5), else 0.0.

    It runs in processes of its own, because an answer such as 9^{9^{9^9}} keeps sympy busy for hours, in C code that no
    signal ends: the process is killed, the answer is worth 0, and `timed_out` is logged.
    """

    def __init__(self, *, boxed: bool = False, timeout: float = 5.0, workers: int = 2) -> None:
        r"""`boxed`: only what stands in the last `\boxed{...}` counts; otherwise the library looks for the answer.
        `timeout`: seconds of one comparison; `workers`: comparisons at once. Raises `UserError` where math-verify is
        not installed."""
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
        """Raises `ValueError` where the row's answer is nothing that math-verify can read."""
        text = trajectory.final_text[-_MAX_CHARS:]
        if self._boxed:
            box = last_boxed(text)
            if box is None:
                return 0.0
            text = rf"\boxed{{{box}}}"
        return await self.compare(text, answer_of(task))

    async def compare(self, text: str, gold: Any) -> Outcome:
        """Whether `text` says what `gold` says: a number, a text, or a list of them of which one is enough."""
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
