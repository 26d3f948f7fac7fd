"""Harbor's own trials over our boxes: 50 tasks get the rewards that our verification gives them."""

import asyncio
import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from agentloop.boxes.shared import close_providers, provider_of
from agentloop.envs.harbor.attempt import Attempt
from agentloop.envs.harbor.check import run_solution
from agentloop.envs.harbor.tasks.task import HarborTask
from agentloop.envs.harbor.verification.rewards import VerifierError
from tests.support.harbor import harbor_python
from tests.support.harbor_tasks import make_task

pytestmark = [pytest.mark.slow, pytest.mark.ecosystem]

TRIALS = """
import asyncio, json, sys
from pathlib import Path
from harbor.models.trial.config import TrialConfig
from harbor.trial.trial import Trial

async def main():
    tasks, tree, folder = json.load(sys.stdin)
    kwargs = {"provider": "rootfs", "images": {"*": tree}}
    found = {}
    room = asyncio.Semaphore(4)

    async def run(task, agent):
        environment = {"import_path": "agentloop.envs.harbor.plugin:Box", "kwargs": kwargs}
        parts = {"task": {"path": task}, "agent": {"name": agent}, "environment": environment}
        config = TrialConfig(**parts, trials_dir=Path(folder))
        async with room:
            result = await (await Trial.create(config)).run()
        verified = result.verifier_result
        found[f"{agent} {task}"] = verified and verified.rewards

    await asyncio.gather(*(run(task, agent) for task in tasks for agent in ("oracle", "nop")))
    json.dump(found, open(Path(folder, "found.json"), "w"))

asyncio.run(main())
"""

CHECKS = (
    ("[ \"$(cat {path})\" = '{word}' ]", "echo '{word}' > {path}", "Write {word} to {path}."),
    ("[ -x {path} ]", "touch {path}; chmod +x {path}", "Make an executable file {path}."),
    ('[ "$(wc -l < {path})" = {number} ]', "seq {number} > {path}", "Write {number} lines to {path}."),
    ("[ -L {path} ]", "ln -s /etc/passwd {path}", "Make {path} a link to /etc/passwd."),
    ("[ -d {path}/{word} ]", "mkdir -p {path}/{word}", "Make the directory {path}/{word}."),
)
"""(test, solution, instruction)"""
REPORTS = (
    "if {check}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt",
    "{check}; echo '{{\"reward\": '$((1 - $?))', \"{word}\": 0.25}}' > /logs/verifier/reward.json",
    "if {check}; then echo 1.0; else echo 0.0; fi > /logs/verifier/reward.txt; exit {number}",
    "echo {number} > /logs/verifier/reward.json; {check}",  # not an object, so it cannot be judged
    "{check} && echo 1 > /logs/verifier/reward.txt",  # nothing done cannot be judged
)


def _part(rng, separate, name=None):
    check, solve, instruction = rng.choice(CHECKS[:3] if separate else CHECKS)  # links are no artifacts
    word, number = rng.choice(("red", "green", "blue", "a b")).replace(" ", "_"), rng.randrange(1, 9)
    values = {"path": f"/app/{name or 'one'}", "word": word, "number": number}
    # Of steps that cannot be judged Harbor takes no notice; our episodes fail.
    report = rng.choice(REPORTS if name is None else REPORTS[:3]).format(check=check.format(**values), **values)
    return {
        "test": f"#!/bin/sh\n{report}\n",
        "solve": f"#!/bin/sh\n{solve.format(**values)}\n",
        "instruction": instruction.format(**values),
    }


def _task(folder, rng, number):
    separate = number % 5 == 1
    parts = {"verifier": {"environment_mode": "separate"}, "artifacts": ["/app"]} if separate else {}
    if rng.random() < 0.3:
        parts["agent"] = {"user": "root", "timeout_sec": 30.0}
    if number % 3 != 0:
        return make_task(folder, **_part(rng, separate), **parts)
    steps = {name: _part(rng, separate, name) for name in ("one", "two", "three")[: rng.choice((2, 3))]}
    if rng.random() < 0.4:
        steps["one"]["min_reward"] = 0.5
    strategy = {"multi_step_reward_strategy": rng.choice(("mean", "final"))} if rng.random() < 0.5 else {}
    return make_task(folder, steps=steps, **parts, **strategy)


async def _ours(folder, tree, *, solve):
    attempt = Attempt(HarborTask.load(folder), await provider_of("rootfs"), images={"*": str(tree)})
    try:
        await attempt.start()
        while True:
            if solve:
                await run_solution(attempt)
            await attempt.judge()
            if not await attempt.advance():
                return attempt.rewards
    except VerifierError:
        return None
    finally:
        await attempt.stop()


async def _all_of_ours(folders, tree):
    found = {}
    for folder in folders:
        for agent in ("oracle", "nop"):
            found[f"{agent} {folder}"] = await _ours(folder, tree, solve=agent == "oracle")
    await close_providers()
    return found


def test_rewards_are_those_of_harbor(tmp_path, tree, python_with):
    rng = random.Random(50)
    folders = [_task(tmp_path / f"tasks/t{number:02}", rng, number) for number in range(50)]
    root = Path(__file__).parents[3]
    subprocess.run([root / "scripts/source-tree", tmp_path / "source"], check=True)
    trials = tmp_path / "trials"
    trials.mkdir()
    subprocess.run(
        [harbor_python(python_with), "-c", TRIALS],
        input=json.dumps([[str(folder) for folder in folders], str(tree), str(trials)]),
        env={**os.environ, "PYTHONPATH": str(tmp_path / "source")},
        cwd=tmp_path,
        text=True,
        check=True,
    )
    theirs = json.loads((trials / "found.json").read_text())
    ours = asyncio.run(_all_of_ours(folders, tree))
    differences = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
    assert differences == {}
    rewards = [value for value in ours.values() if isinstance(value, dict)]
    assert len({json.dumps(value, sort_keys=True) for value in rewards}) > 8
    assert sum(value is None for value in ours.values()) > 5
    solved = [ours[f"oracle {folder}"] for folder in folders]
    assert {value["reward"] for value in solved if value is not None} == {1.0}
