"""`Suite`: the tests of a package, run in boxes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentloop.boxes.interface.box import BoxProvider
from agentloop.boxes.interface.spec import BoxSpec, Image
from agentloop.envs.harbor.making.folder import TEST_BEGIN
from agentloop.envs.harbor.making.swe import inside
from agentloop.envs.harbor.making.swe.packages.fetching import Package
from agentloop.envs.harbor.making.swe.packages.layout import TEST_FILE
from agentloop.envs.harbor.verification.boxes import TESTS, VERIFIER, make_folders
from agentloop.errors import UserError
from agentloop.process import owned_folders

APP = "/app"
Runner = Literal["pytest", "unittest"]
_INSIDE = Path(inside.__file__).parent
_TEST = TEST_BEGIN + "exec python3 -I /tests/run.py\n"
SPARE_SECONDS = 60.0
"""Seconds that a box may run beyond the time of its tests."""
_SHOWN = 2000


@dataclass(slots=True, frozen=True)
class Outcome:
    """The result of the tests."""

    passed: frozenset[str]
    """Names of tests."""
    failed: Mapping[str, str]
    """Name to message, of tests that failed."""
    broken: Mapping[str, str]
    """Name to message, of files that could not be imported."""
    timed_out: bool
    output: str
    """End of the output."""

    def message(self, test: str) -> str:
        """Return why a test failed."""
        return self.failed.get(test, "")


@dataclass(slots=True, frozen=True, kw_only=True)
class Machine:
    """The boxes of a package's tests, and of its tasks."""

    image: str
    cpus: int = 1
    memory_mb: int = 2048
    storage_mb: int = 1024

    @property
    def spec(self) -> BoxSpec:
        """The boxes in which the maker runs tests."""
        return BoxSpec(
            image=Image(reference=self.image),
            workdir=APP,
            cpus=self.cpus,
            memory_mb=self.memory_mb,
            storage_mb=self.storage_mb,
        )


@dataclass(slots=True, frozen=True)
class Suite:
    """The tests of a package; each run has a separate box."""

    package: Package
    machine: Machine
    provider: BoxProvider
    runner: Runner

    def plan(self, *, seconds: float, chosen: Sequence[str] | None = None, hash_seed: int = 0) -> dict[str, Any]:
        """Return the plan for the script in the box. `chosen` are names of tests; None means all."""
        layout = self.package.layout
        return {
            "runner": self.runner,
            "root": layout.root,
            "parts": list(layout.parts),
            "tests": list(layout.tests),
            "test_file": TEST_FILE,
            "seconds": seconds,
            "hash_seed": hash_seed,
            "chosen": None if chosen is None else sorted(chosen),
        }

    async def run(self, plan: Mapping[str, Any], changes: Mapping[str, bytes] | None = None) -> Outcome:
        """Run the tests of a plan with some files of the source changed. Raises `BoxError` if a box fails."""
        with owned_folders.temporary("agentloop-suite-") as made:
            tests, changed, logs = made / "tests", made / "changed", made / "logs"
            write_tests(tests, plan)
            for path, data in (changes or {}).items():
                (changed / path).parent.mkdir(parents=True, exist_ok=True)
                (changed / path).write_bytes(data)
            box = await self.provider.start(self.machine.spec)
            try:
                await make_folders(box)
                await box.upload(self.package.folder, APP)
                if changes:
                    await box.upload(changed, APP)
                await box.upload(tests, TESTS)
                result = await box.exec(
                    f"{TESTS}/test.sh 2>&1", env={"PYTHONPATH": ""}, timeout=plan["seconds"] + SPARE_SECONDS
                )
                await box.download(VERIFIER, logs)
            finally:
                await box.stop()
            output = result.stdout[-_SHOWN:]
            if not (logs / "report.json").is_file():
                raise UserError(
                    f"The tests of {self.package.name} cannot be run in the image {self.machine.image}:\n{output}"
                )
            report = json.loads((logs / "report.json").read_text())
        return Outcome(frozenset(report["passed"]), report["failed"], report["broken"], report["timed_out"], output)

    async def sound_copies(self) -> set[bytes]:
        """Return the SHA-256 of all Python files of the image: a bug in one of them could be found by comparison."""
        box = await self.provider.start(self.machine.spec)
        try:
            result = await box.exec(["python3", "-I", "-c", _HASHES], timeout=SPARE_SECONDS, output_bytes=1 << 24)
        finally:
            await box.stop()
        return {bytes.fromhex(line) for line in result.stdout.split()}


_HASHES = """
import hashlib, pathlib
for top in pathlib.Path('/').iterdir():
    if top.name not in ('proc', 'sys', 'dev'):
        for path in top.rglob('*.py'):
            if path.is_file():
                print(hashlib.sha256(path.read_bytes()).hexdigest())
"""


def write_tests(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the content of /tests: the script of the box, its reports and its plan."""
    (folder / "reports").mkdir(parents=True)
    shutil.copyfile(_INSIDE / "run.py", folder / "run.py")
    for name in ("pytest_report.py", "unittest_report.py"):
        shutil.copyfile(_INSIDE / name, folder / "reports" / name)
    (folder / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")
    (folder / "test.sh").write_text(_TEST)
    (folder / "test.sh").chmod(0o755)
