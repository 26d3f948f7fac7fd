"""Measure copies of boxes, and boxes that start while other episodes play, alternating in one run.

    python -m benchmarks.sandbox.box_forks [--providers rootfs docker] [--rounds 5]

A preparation writes 300 files, and then waits for half a second (`waits`) or counts to three million (`computes`), as
downloads and installations do. `copy_ms` is a copy of a prepared box,
`start_ms` a start without a preparation. `group_seconds` is the time until each of 8 episodes has a prepared box, by 8
preparations or by one and copies. `waiting_ms` is how long an episode waits for its prepared box when 4 of 16 play at
once, each for half a second: with `env.prepare_ahead` 0 or 8, and with copies in groups of 8 or without.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentloop import AgentLoop, boxes
from agentloop.boxes import Box, BoxProvider, BoxSpec, Image
from agentloop.boxes.images import busybox
from agentloop.boxes.prepared import PreparedBox
from agentloop.boxes.shared import close_providers
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.harbor.env import HarborEnv, tasks
from agentloop.envs.harbor.making.folder import task_toml, write_file
from agentloop.episodes.worker import RolloutWorker
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.types.requests import RolloutRequest
from benchmarks import results_file

_FILES = "i=0; while [ $i -lt 300 ]; do echo $i > /srv/file$i; i=$((i + 1)); done; "
SETUPS = {
    "waits": _FILES + "sleep 0.5",
    "computes": _FILES + "awk 'BEGIN { for (i = 0; i < 3000000; i++) sum += i }'",
}
GROUP = 8
PLAYING = 4
OPTIONS = {"memory_mb": 256, "storage_mb": 64}


async def milliseconds(work: Callable[[], Awaitable[Box]]) -> float:
    begin = time.perf_counter()
    box = await work()
    found = 1000 * (time.perf_counter() - begin)
    await box.stop()
    return found


async def group_seconds(prepare: Callable[[], Awaitable[Box]], *, copies: bool) -> float:
    """Return the time until a group has its boxes."""
    begin = time.perf_counter()
    prepared = PreparedBox(prepare, takers=GROUP)
    found = await asyncio.gather(*(prepared.take() if copies else prepare() for _ in range(GROUP)))
    seconds = time.perf_counter() - begin
    for box in found:
        await box.stop()
    return seconds


async def copies(provider: BoxProvider, spec: BoxSpec, setup: str, rounds: int) -> dict[str, float]:
    async def prepare() -> Box:
        box = await provider.start(spec)
        await box.exec(setup)
        return box

    found: dict[str, list[float]] = {}
    box = await prepare()
    for _ in range(rounds):
        for _ in range(5):
            found.setdefault("copy_ms", []).append(await milliseconds(box.fork))
            found.setdefault("start_ms", []).append(await milliseconds(lambda: provider.start(spec)))
        for name, shared in (("group_seconds, 8 preparations", False), ("group_seconds, copies", True)):
            found.setdefault(name, []).append(await group_seconds(prepare, copies=shared))
    await box.stop()
    return {name: statistics.median(values) for name, values in found.items()}


def write_task(folder: Path, setup: str) -> Path:
    """Write a task with a preparation."""
    step = folder / "steps/step-1"
    write_file(step / "instruction.md", "Do nothing.")
    write_file(step / "workdir/setup.sh", setup)
    write_file(step / "tests/test.sh", "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n", is_executable=True)
    (folder / "environment").mkdir()
    write_file(folder / "task.toml", task_toml(folder.name, ["step-1"], image="base"))
    return folder


async def waiting_ms(task: Path, tree: Path, provider: str, *, ahead: int, group: int) -> float:
    """Return how long episodes wait for their boxes, in the mean."""
    renderer = renderer_for(build_tokenizer())
    ids = [*renderer.encoder.encode_rendered("Done."), renderer.stop_token_ids[0]]
    row = next(tasks(str(task)))
    worker = RolloutWorker(
        AgentLoop(ScriptedEngine([ids], seconds_per_turn=0.5), renderer),
        lambda _: HarborEnv(row, images={"*": str(tree)}, provider=provider, provider_options=OPTIONS),
        max_concurrency=PLAYING,
        prepare_ahead=ahead,
    )
    requests = [RolloutRequest(group_id=str(k), row=0, n=group, seed=0) for k in range(2 * GROUP // group)]
    groups = await asyncio.gather(*map(worker.play, requests))
    trajectories = [trajectory for each in groups for trajectory in each.trajectories]
    assert all(trajectory.reward == 1.0 for trajectory in trajectories)
    return 1000 * statistics.mean(each.metrics["env/seconds_waiting_for_box"] for each in trajectories)


async def measure(name: str, tree: Path, task: Path, setup: str, rounds: int) -> dict[str, float]:
    provider = boxes.create(name, **OPTIONS)
    await provider.open()
    spec = BoxSpec(image=Image(tree=tree))
    await (await provider.start(spec)).stop()
    found = await copies(provider, spec, setup, rounds)
    await provider.close()
    waits: dict[str, list[float]] = {}
    for _ in range(rounds):
        for ahead in (0, 8):
            for group in (1, GROUP):
                key = f"waiting_ms, ahead {ahead}, {'copies' if group > 1 else 'no copies'}"
                waits.setdefault(key, []).append(await waiting_ms(task, tree, name, ahead=ahead, group=group))
    await close_providers()
    return found | {key: statistics.median(values) for key, values in waits.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--providers", nargs="+", default=["rootfs"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "busybox")
        tree.mkdir()
        busybox.fill(tree)
        found: dict[str, Any] = {}
        for kind, setup in SETUPS.items():
            task = write_task(Path(folder, kind), setup)
            for name in arguments.providers:
                found[f"{name}, {kind}"] = asyncio.run(measure(name, tree, task, setup, arguments.rounds))
    print(results_file.write("box_forks", {"medians": found}).read_text())


if __name__ == "__main__":
    main()
