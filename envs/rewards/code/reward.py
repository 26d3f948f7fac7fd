"""`CodeTests`: runs the program of the final answer on the row's test cases in a sandbox."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards.base import Outcome, Reward
from agentloop.envs.rewards.code.cases import AssertCases, CallCases, ProgramCases, read_cases, same_output
from agentloop.envs.rewards.texts import last_fence
from agentloop.errors import UserError
from agentloop.sandboxes import Execution
from agentloop.tools.code_interpreter import sandbox_at

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_HARNESS = Path(__file__).with_name("harness.py").read_text()
_DONE = "done.jsonl"
_AT_ONCE = 8
"""Maximum concurrent cases of one program."""
_FENCES = ("python", "py", "python3")


class CodeTests(Reward):
    """Reward of 1.0 if the program in the last Python fence of the final text passes all cases, else 0.0.

    Expected outputs stay outside the sandbox, where the program cannot read them. Assert statements must run in the
    program's process. They count only if they return a random marker, which is sent after the program has run, so
    `os._exit(0)` passes nothing. Only cases with outputs protect against code that searches its own interpreter for the
    marker or overloads `==`.
    """

    def __init__(
        self,
        sandbox: str = "local",
        *,
        tests_field: str = "tests",
        partial: bool = False,
        max_tests: int = 64,
        timeout: float = 10.0,
        memory_mb: int = 1024,
        **sandbox_options: Any,
    ) -> None:
        """Create the sandbox, with the options of `code_interpreter`. Raises `UserError` for an invalid one.

        `tests_field` is the row's column with the cases (formats: `cases.read_cases`); rows without it have them in
        `answer`. With `partial` the reward is the share of cases that pass. Only the first `max_tests` cases run.
        `timeout` is the maximum seconds of one run of a program, or of all calls and assert statements together.
        """
        if max_tests < 1:
            raise UserError("max_tests of code_tests must be at least 1.")
        self.sandbox = sandbox_at(sandbox, sandbox_options, of="reward 'code_tests'", owner=CodeTests)
        self._execution = Execution(code="", timeout=timeout, memory_mb=memory_mb)
        self._field = tests_field
        self._partial = partial
        self._max_tests = max_tests

    async def start(self) -> None:
        await self.sandbox.start()
        await self.sandbox.run(self._execution)

    async def shutdown(self) -> None:
        await self.sandbox.close()

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Outcome:
        """Judge the program. Raises `ValueError` for malformed cases and `SandboxError` if the sandbox fails."""
        raw = task.get(self._field, task.get("answer"))
        cases = read_cases(raw, most=self._max_tests)
        program = last_fence(trajectory.final_text, *_FENCES)
        if program is None:
            return {"reward": 0.0, "passed": 0.0, "has_program": 0.0}
        await self.sandbox.start()
        passed, total = await self.passed(program, cases)
        reward = passed / total if self._partial else float(passed == total)
        return {"reward": reward, "passed": passed / total, "has_program": 1.0}

    async def passed(self, program: str, cases: ProgramCases | CallCases | AssertCases) -> tuple[int, int]:
        """Return (number of passed cases, number of cases). Without `partial`, a failed case stops the run."""
        if isinstance(cases, ProgramCases):
            return await self._programs(program, cases), len(cases.stdin)
        if isinstance(cases, CallCases):
            results = await self._results(program, cases.arguments, function=cases.function)
            passed = sum(results.get(i) == [wanted] for i, wanted in enumerate(cases.results))
            return passed, len(cases.results)
        marker = secrets.token_hex(16)
        results = await self._results(program, cases.statements, marker=marker)
        return sum(result == [marker] for result in results.values()), len(cases.statements)

    async def _programs(self, program: str, cases: ProgramCases) -> int:
        async def passes(stdin: str, stdout: str) -> bool:
            result = await self.sandbox.run(replace(self._execution, code=program, stdin=stdin))
            return result.ok and not result.output_truncated and same_output(result.stdout, stdout)

        passed = 0
        pairs = list(zip(cases.stdin, cases.stdout, strict=True))
        for first in range(0, len(pairs), _AT_ONCE):
            batch = pairs[first : first + _AT_ONCE]
            passed += sum(await asyncio.gather(*(passes(*pair) for pair in batch)))
            if not self._partial and passed < first + len(batch):
                break
        return passed

    async def _results(self, program: str, cases: Any, *, function: str = "", marker: str = "") -> dict[int, list[Any]]:
        """Return {case: [result]} of the cases that finished."""
        job = {"function": function, "marker": marker, "cases": list(cases), "stop": not self._partial}
        result = await self.sandbox.run(
            replace(
                self._execution,
                code=_HARNESS,
                stdin=json.dumps(job) + "\n",
                files={"solution.py": program.encode(errors="replace")},
                fetch_files=[_DONE],
            )
        )
        return dict(map(_numbered, result.files.get(_DONE, b"").decode(errors="replace").splitlines()))


def _numbered(line: str) -> tuple[int, list[Any]]:
    """Parse a line of the harness. Malformed lines, which the solution may have written, get the number -1."""
    try:
        read = json.loads(line)
        return int(read["case"]), [read["result"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return -1, []
