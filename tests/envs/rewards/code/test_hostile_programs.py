"""A wrong program cannot escape its reward by breaking the sandbox: it gets 0.0, never a failed judge."""

import asyncio
import json
import os
import sys

import pytest

from agentloop.envs.rewards import load_reward
from agentloop.sandboxes.levels import bubblewrap
from agentloop.sandboxes.levels import landlock as landlock_level
from agentloop.sandboxes.worlds import boot
from tests.support.nobody import run_as_nobody

pytestmark = pytest.mark.slow

CALLS = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}
GOOD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"
FIRST = {
    "limits": "import resource\nfor limit in range(16):\n    resource.prlimit(1, limit, (0, 0))\n",
    "descriptors": "import resource\nresource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))\n",
    "processes": "import resource\nresource.prlimit(1, resource.RLIMIT_NPROC, (0, 0))\n",
    "affinity": "import os\nos.sched_setaffinity(1, [0])\n",
    "scheduler": "import os\nos.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))\n",
    "priority": "import os\nos.setpriority(os.PRIO_PROCESS, 1, 19)\nos.setpriority(os.PRIO_USER, 0, 19)\n",
    "signals": "import os\nfor number in range(1, 65):\n    try: os.kill(1, number)\n    except OSError: pass\n",
    "interrupt": "import os\nos.kill(1, 2)\nos.kill(os.getppid(), 2)\n",
    "memory": "open('big', 'wb').write(bytes(56 << 20))\nimport os\nos._exit(0)\n",
}
"""What a wrong program does to the first process of its sandbox before it answers."""


def guarded(attack: str) -> str:
    lines = "".join(f"    {line}\n" for line in attack.splitlines())
    return f"try:\n{lines}except BaseException:\n    pass\n"


def judged(level: str, programs: list[str], episode, **options) -> list[float]:
    async def all_of_them() -> list[float]:
        reward = load_reward("code_tests", {"sandbox": level, "timeout": 5.0, "memory_mb": 64, "slots": 1, **options})
        await reward.start()
        try:
            answers = [f"```python\n{program}\n```" for program in programs]
            return [await reward(episode(answer), {"tests": CALLS}) for answer in answers]
        finally:
            await reward.shutdown()

    return asyncio.run(all_of_them())


@pytest.fixture
def python(level, monkeypatch):
    """A Python that the user of landlock's code can reach."""
    if level == "landlock" and os.geteuid() == 0 and not landlock_level.others_can_reach(boot.INTERPRETER):
        monkeypatch.setattr(boot, "INTERPRETER", os.path.realpath("/usr/bin/python3"))
        monkeypatch.setattr(sys, "base_prefix", "/usr")


@pytest.mark.parametrize("level", ["slots", "bubblewrap", pytest.param("docker", marks=pytest.mark.docker), "landlock"])
def test_wrong_programs_that_attack_their_sandbox_get_nothing(level, python, episode):
    attacks = [guarded(attack) + WRONG for attack in FIRST.values()]
    assert judged(level, [*attacks, GOOD], episode) == [0.0] * len(attacks) + [1.0]


def test_code_that_breaks_its_world_counts_as_wrong(episode, monkeypatch):
    """Without the filter that prevents it, programs do break their world."""
    allow_all = b"\x06\x00\x00\x00\x00\x00\xff\x7f"
    monkeypatch.setattr(bubblewrap, "build_filter", lambda: allow_all)
    attacks = [FIRST[name] + WRONG for name in ("limits", "descriptors", "processes")]
    assert judged("bubblewrap", [*attacks, GOOD], episode) == [0.0, 0.0, 0.0, 1.0]


AS_NOBODY = """
import asyncio, json, os, sys
from agentloop.sandboxes import Execution, create
async def main():
    assert os.geteuid() == 65534
    sandbox = create(sys.argv[1], slots=1)
    for attack in json.loads(sys.argv[2]):
        result = await sandbox.run(Execution(code=attack + "open('out', 'w').write('x')", fetch_files=["out"]))
        print(result.return_code, dict(result.files))
    print((await sandbox.run(Execution(code="print('next')"))).stdout, end="")
    await sandbox.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("level", ["slots", "bubblewrap", "landlock"])
def test_code_of_the_same_user_gets_a_result(level):
    """Without root, the first process has the user of the code."""
    attacks = [guarded(attack) for name, attack in FIRST.items() if name != "memory"]
    process = run_as_nobody(AS_NOBODY, level, json.dumps(attacks))
    assert process.stderr == ""
    assert process.stdout.splitlines() == ["0 {'out': b'x'}"] * len(attacks) + ["next"]
