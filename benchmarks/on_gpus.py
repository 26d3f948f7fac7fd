"""Run the commands of gpu_jobs.yaml, as many at a time as there are GPUs.

    python -m benchmarks.on_gpus FOLDER [JOB ...] [--gpus 4] [--list]

Each command sees GPUs of its own and has an equal share of the processor's cores. FOLDER gets its output (JOB.log), and
a line in status.jsonl when it starts and when it ends. Without JOB all commands run, in the order of the file; what a
job needs (`after`) runs before it. Exits with 1 if a command failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

JOBS = Path(__file__).with_name("gpu_jobs.yaml")
_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Job:
    """A shell command; it is ended after `limit` seconds."""

    name: str
    command: str
    limit: float
    gpus: int = 1
    after: Sequence[str] = ()


@dataclass(slots=True)
class Running:
    """A started command, the leader of a session of its own."""

    job: Job
    process: subprocess.Popen[bytes]
    gpus: set[int]
    began: float = field(default_factory=time.monotonic)

    def ended(self) -> int | None:
        """Return the exit status, 124 after the limit, or None while it runs. Then nothing of the session is left."""
        status = self.process.poll()
        if status is None and time.monotonic() - self.began < self.job.limit:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return 124 if status is None else status


def load(path: Path = JOBS) -> dict[str, Job]:
    return {name: Job(name, **job) for name, job in yaml.safe_load(path.read_text()).items()}


def chosen(jobs: Mapping[str, Job], names: Iterable[str]) -> list[Job]:
    """Return the named jobs, each after those that it needs. Raises `KeyError` with a name that does not exist."""
    found: dict[str, Job] = {}

    def add(name: str) -> None:
        for needed in jobs[name].after:
            add(needed)
        found.setdefault(name, jobs[name])

    for name in names:
        add(name)
    return list(found.values())


def run(jobs: Sequence[Job], folder: Path, gpus: int) -> dict[str, int]:
    """Return the exit status of each job: 125 if one that it needs has failed, or if it needs more than `gpus`."""
    waiting, running, statuses = list(jobs), list[Running](), dict[str, int]()
    free = set(range(gpus))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "status.jsonl").open("a", buffering=1) as file:

        def say(job: Job, **more: object) -> None:
            line = json.dumps({"job": job.name, **more})
            file.write(line + "\n")
            print(line, flush=True)

        try:
            while waiting or running:
                for one in list(running):
                    if (status := one.ended()) is not None:
                        running.remove(one)
                        free |= one.gpus
                        statuses[one.job.name] = status
                        say(one.job, status=status, seconds=round(time.monotonic() - one.began, 1))
                for job in list(waiting):
                    if job.gpus > gpus or any(statuses.get(name) for name in job.after):
                        waiting.remove(job)
                        statuses[job.name] = 125
                        say(job, status=125, reason="too few GPUs" if job.gpus > gpus else "a job that it needs failed")
                    elif job.gpus <= len(free) and all(name in statuses for name in job.after):
                        waiting.remove(job)
                        mine = set(sorted(free)[: job.gpus])
                        free -= mine
                        running.append(start(job, folder, mine, gpus))
                        say(job, gpus=sorted(mine))
                time.sleep(_PAUSE)
        finally:
            for one in running:
                with suppress(ProcessLookupError):
                    os.killpg(one.process.pid, signal.SIGKILL)
    return statuses


def start(job: Job, folder: Path, mine: set[int], gpus: int) -> Running:
    cores = sorted(os.sched_getaffinity(0))
    share = max(len(cores) // gpus, 1)
    own = [core for gpu in sorted(mine) for core in cores[gpu * share : (gpu + 1) * share]] or cores
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, sorted(mine))),
        "FOLDER": str(folder.resolve()),
    }
    with (folder / f"{job.name}.log").open("wb") as log:
        process = subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(map(str, own)), "bash", "-c", job.command],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    return Running(job, process, mine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--gpus", type=int, help="default: all that torch sees")
    parser.add_argument("--list", action="store_true", help="show the commands, and run none")
    args = parser.parse_args()
    known = load()
    try:
        jobs = chosen(known, args.jobs or known)
    except KeyError as error:
        parser.error(f"unknown job {error}: choose from {', '.join(known)}")
    if args.list:
        for job in jobs:
            print(f"{job.name} (GPUs: {job.gpus}, at most {job.limit:g} s): {job.command}")
        return
    gpus = args.gpus
    if gpus is None:
        import torch

        gpus = torch.cuda.device_count()
    if gpus < 1:
        parser.error("there is no GPU. Name the number of GPUs with --gpus.")
    statuses = run(jobs, args.folder, gpus)
    sys.exit(1 if any(statuses.values()) else 0)


if __name__ == "__main__":
    main()
