"""Train with random settings for some minutes, and check that no run crashes, hangs or loses an episode.

    python -m benchmarks.runs.fuzz_runs --minutes 20 [--seed 0] [--quiet-ms 5]
    python -m benchmarks.runs.fuzz_runs --only 17          # one case again, whose files are kept

A case is a recipe of `fuzz_tasks` with settings of `fuzz_settings`: any mode, advantage, loss and correction; the
engines scripted and hf; local or Ray workers; one learner rank or two; tools, or an agent with branches; tools and
judges that fail, dawdle or give NaN; evaluations; and kills in the middle, after which the same command resumes.
Settings that do not agree must be refused by a `UserError` that names one of them. Every other run must

    end within `LIMITS` seconds and make all its steps, with finite metrics;
    account for each admitted episode: trained, dropped with a reason, or still in the queue of the last checkpoint;
    write no trajectory twice;
    leave no process behind.

Loop lag is measured from the first episode to the end, and at the same time in a process that does nothing. Its 99th
percentile over all cases should be below 20 ms. Cases in which the 99th percentile of the idle process was above
`--quiet-ms` are counted separately, because a busy machine delays all processes. Writes results/fuzz_runs.json. A
failing case prints the command that repeats it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from agentloop.config.loading import validated
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.run.checks import check_trainable
from agentloop.trainer.run.folder import RunFolder
from agentloop.types.trajectory_io import read_jsonl
from benchmarks import results_file
from benchmarks.runs.chaos import SLOW_IMPORTS
from benchmarks.runs.fuzz_case import Outcome, measure_lag, p99, play, write_model
from benchmarks.runs.fuzz_settings import TASKS, fields, settings

LIMITS = {"local": 240.0, "ray": 500.0}
"""Seconds of a case, on a busy machine, before it counts as hung."""
GONE = 30.0
"""Seconds in which all processes of a case end after it."""


@dataclass(slots=True)
class Case:
    """The settings of one run, and when it is killed."""

    seed: int
    config: dict[str, Any]
    kills: int
    refused: list[str] = field(default_factory=list)
    """Error messages for settings that were drawn before and contradict each other."""

    @property
    def labels(self) -> dict[str, Any]:
        """Dimensions by which results are counted."""
        config = validated(RunConfig, self.config, f"seed {self.seed}")
        return {
            "mode": config.staleness.mode,
            "advantage": config.algorithm.advantage,
            "loss": config.learner.loss,
            "engine": config.engine.name,
            "workers": config.workers.kind,
            "ranks": config.learner.ranks,
            "env": config.env.factory,
            "dynamic_sampling": config.algorithm.dynamic_sampling is not None,
            "kills": self.kills,
        }


def case_of(seed: int, model: Path) -> Case:
    """Draw settings until some agree with each other. Raises `AssertionError` if a refusal names none of them."""
    rng = random.Random(seed)
    refused: list[str] = []
    while True:
        config, kills = _config(rng, model), rng.choice([0, 0, 0, 1, 2])
        refusal = _refusal(config)
        if refusal is None:
            return Case(seed, config, kills, refused)
        assert _names_a_setting(refusal), f"seed {seed}: it names no setting: {refusal}"
        refused.append(refusal)


def _refusal(config: dict[str, Any]) -> str | None:
    try:
        check_trainable(validated(RunConfig, config, "of a case"))
    except UserError as error:
        return str(error)
    return None


def _names_a_setting(message: str) -> bool:
    """Return whether a refusal names a setting; the validator of a section names it without the section."""
    return any(key.rpartition(".")[2] in message for key, _, _ in fields(RunConfig))


def _config(rng: random.Random, model: Path) -> dict[str, Any]:
    """Return a config as a file would have it."""
    rates = {name: rng.choice([0.0, 0.0, 0.1, 0.4]) for name in ("fails", "nan", "slow")}
    plays_agent, on_hf, on_ray = rng.random() < 0.25, rng.random() < 0.25, rng.random() < 0.12
    config: dict[str, Any] = {
        "model": str(model),
        "data": {"train": f"{TASKS}:tasks", "train_options": {"num": 9}, "eval": f"{TASKS}:tasks"},
        "env": {"reward": f"{TASKS}:reward", "reward_options": rates},
        "limits": {"max_turns": 3, "max_turn_tokens": 32, "max_tokens": 400, "max_seconds": 60.0},
        "engine": {"name": "hf" if on_hf else "scripted"},
        "learner": {"lr": 1e-3, "token_budget": 700, "device": "cpu"},
        "run": {"steps": rng.choice([2, 3, 4]), "save_every": 1, "loggers": [], "max_failure_fraction": 1.0},
        "algorithm": {"group_size": 3, "groups_per_step": 2},
    }
    config["data"]["eval_options"] = {"num": 2}
    config["engine"]["options"] = {"device": "cpu"} if on_hf else {"script": f"{TASKS}:script"}
    if plays_agent:
        config["env"] |= {"factory": "agent", "options": {"agent": f"{TASKS}:solve"}}
    else:
        config["env"]["tools"] = [{"name": f"{TASKS}:Add", "options": rates}]
    if on_ray:
        config["workers"] = {"kind": "ray", "count": rng.choice([1, 2]), "hang_seconds": 600, "max_restarts": 50}
    if rng.random() < 0.06:
        config["learner"]["ranks"] = 2
    if rng.random() < 0.5:
        config["learner"]["reference"] = str(model)
    for key, value in settings(rng).items():
        section = config
        *path, name = key.split(".")
        for part in path:
            section = section.setdefault(part, {})
        section[name] = value
    return config


class Runner:
    """Plays cases in processes that are forked from one that has done the slow imports."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*SLOW_IMPORTS, "benchmarks.runs.fuzz_case"])
        self._idle = IdleLag()

    def run(self, case: Case, folder: Path) -> dict[str, Any]:
        """Play a case to its end, and return its findings; `problems` is empty without any."""
        (folder / "config.yaml").write_text(json.dumps(case.config, indent=1))
        started = time.monotonic()
        self._idle.take()
        outcome, kills, problems = self._play(case, folder)
        problems += leftovers(str(folder))
        if outcome is not None and outcome.status == "done":
            problems += _problems_of_records(RunFolder(folder / "run"), case)
        elif outcome is not None and not (outcome.status == "refused" and _names_a_setting(outcome.message)):
            problems.append(f"{outcome.status}: {outcome.message}")
        return {
            **case.labels,
            "seed": case.seed,
            "status": outcome.status if outcome else "no result",
            "seconds": round(time.monotonic() - started, 1),
            "killed": kills,
            "refused_before": len(case.refused),
            "lags_ms": outcome.lags_ms if outcome else [],
            "idle_lag_p99_ms": self._idle.take(),
            "message": outcome.message[:300] if outcome and outcome.status == "refused" else None,
            "problems": problems,
        }

    def _play(self, case: Case, folder: Path) -> tuple[Outcome | None, int, list[str]]:
        """Start the run, kill it `kills` times, and wait for its end."""
        limit = LIMITS[case.labels["workers"]]
        rng, deadline, kills = random.Random(case.seed), time.monotonic() + limit, 0
        while True:
            process = self._context.Process(target=play, args=(folder,))
            process.start()
            if kills < case.kills and _after_progress(process, folder, rng, kills, deadline):
                kills += 1
                end(process, str(folder))
                continue
            process.join(max(deadline - time.monotonic(), 0.0))
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGUSR1)  # writes where its threads are to the log
                time.sleep(1.0)
                end(process, str(folder))
                return None, kills, [f"hangs: no end after {limit:.0f} s. {_tail(folder)}"]
            found = Outcome.read(folder)
            if found is None:
                return None, kills, [f"ended with {process.exitcode} and no result. {_tail(folder)}"]
            return found, kills, []


def _after_progress(process: BaseProcess, folder: Path, rng: random.Random, kills: int, deadline: float) -> bool:
    """Wait for `kills` steps and a random moment; return whether the process still runs."""
    metrics = folder / "run" / "metrics.jsonl"
    while process.is_alive() and time.monotonic() < deadline:
        if metrics.is_file() and metrics.read_bytes().count(b"\n") >= kills:
            process.join(rng.uniform(0.0, 1.5))
            return process.is_alive()
        time.sleep(0.05)
    return False


def members(folder: str) -> list[psutil.Process]:
    """Return the processes of a case: they have its folder in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("FUZZ_FOLDER") == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end(process: BaseProcess, folder: str) -> None:
    """Kill the process of a run; its others must follow, and are killed if they do not."""
    process.kill()
    process.join()
    for left in members(folder):
        with suppress(psutil.NoSuchProcess):
            left.kill()


def leftovers(folder: str) -> list[str]:
    """Return a problem if processes of a case are still there after `GONE` seconds, and kill them."""
    deadline = time.monotonic() + GONE
    while (left := members(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    names = []
    for process in left:
        with suppress(psutil.NoSuchProcess):
            names.append(" ".join(process.cmdline())[:80])
            process.kill()
    return [f"{len(names)} processes are left: {'; '.join(names[:3])}"] if names else []


def _problems_of_records(folder: RunFolder, case: Case) -> list[str]:
    """Check metrics, trajectories and the last checkpoint of a finished run."""
    problems = []
    steps, lines = case.config["run"]["steps"], folder.read_metrics()
    if [line["step"] for line in lines if line["step"]] != list(range(1, steps + 1)):
        problems.append(f"steps {[line['step'] for line in lines]} of {steps}")
    if bad := {name for line in lines for name, value in line.items() if not math.isfinite(value)}:
        problems.append(f"metrics that are not finite: {', '.join(sorted(bad))}")
    queue = json.loads((folder.checkpoints / f"step_{steps:06d}" / "state.json").read_text())["queue"]
    counts = queue["counts"]
    left = sum(count for name, count in counts.items() if name != "admitted")
    there = sum(entry["request"]["n"] if entry["episodes"] is None else entry["episodes"] for entry in queue["entries"])
    if counts.get("admitted", 0) != left + there:
        problems.append(f"{counts.get('admitted')} admitted, {left} left, {there} there: {counts}")
    names = Counter(
        trajectory.trajectory_id
        for file in sorted(folder.trajectories.glob("step_*.jsonl.gz"))
        for trajectory in read_jsonl(file)
    )
    if twice := [name for name, count in names.items() if count > 1]:
        problems.append(f"written twice: {twice[:5]}")
    return problems


def _tail(folder: Path) -> str:
    log = folder / "log"
    return log.read_text(errors="replace")[-1500:] if log.is_file() else ""


class IdleLag:
    """Lag of an idle event loop in this process: the delay that the machine itself causes."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        threading.Thread(target=lambda: asyncio.run(self._measure()), daemon=True).start()

    async def _measure(self) -> None:
        await measure_lag(self._lags)

    def take(self) -> float | None:
        """Return the 99th percentile since the last call, in milliseconds."""
        lags = self._lags[:]
        del self._lags[: len(lags)]
        return p99(lags)


def fuzz(seeds: Iterator[int], *, seconds: float, keep: Path | None = None) -> list[dict[str, Any]]:
    """Play cases until the time is over; print each, and the command that repeats a failing one."""
    ended, found = time.monotonic() + seconds, []
    with tempfile.TemporaryDirectory() as temporary:
        root = keep or Path(temporary)
        runner = Runner(write_model(root / "model"))
        for seed in seeds:
            if time.monotonic() > ended:
                break
            folder = root / f"seed_{seed}"
            folder.mkdir()
            result = runner.run(case_of(seed, runner.model), folder)
            found.append(result)
            shown = " ".join(str(value) for value in list(result.values())[:9])
            lags = f"lag {p99(result['lags_ms'])} ms, idle {result['idle_lag_p99_ms']} ms"
            print(f"{seed}: {result['status']} in {result['seconds']} s, {lags}, {shown}", flush=True)
            for problem in result["problems"]:
                print(f"  PROBLEM {problem}\n  python -m benchmarks.runs.fuzz_runs --only {seed}", flush=True)
            if keep is None:
                shutil.rmtree(folder, ignore_errors=True)
    return found


def summary(results: list[dict[str, Any]], *, quiet_ms: float) -> dict[str, Any]:
    """Return the counts and lags of all cases, and all details of cases with a problem."""
    quiet = [result for result in results if (result["idle_lag_p99_ms"] or 0.0) <= quiet_ms]
    return {
        "cases": len(results),
        "statuses": Counter(result["status"] for result in results),
        "kills": sum(result["killed"] for result in results),
        "settings_refused": sum(result["refused_before"] for result in results),
        "dimensions": {
            name: Counter(str(result[name]) for result in results)
            for name in ("mode", "advantage", "loss", "engine", "workers", "ranks", "env", "dynamic_sampling")
        },
        "lag_p99_ms": {"all": _pooled(results), "quiet": _pooled(quiet), "quiet_cases": len(quiet)},
        "idle_lag_p99_ms": sorted(result["idle_lag_p99_ms"] for result in results if result["idle_lag_p99_ms"]),
        "problems": [{**result, "lags_ms": None} for result in results if result["problems"]],
        "refused_at_start": [result["message"] for result in results if result["status"] == "refused"],
    }


def _pooled(results: list[dict[str, Any]]) -> float | None:
    """Return the 99th percentile of all measurements of some cases."""
    return p99([lag for result in results for lag in result["lags_ms"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case")
    parser.add_argument("--only", type=int, nargs="+", help="seeds of the cases to repeat; nothing is recorded")
    parser.add_argument("--quiet-ms", type=float, default=5.0, help="idle lag up to which a case's lag is judged")
    args = parser.parse_args()
    if args.only:
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        print(f"files: {folder}")
        results = fuzz(iter(args.only), seconds=math.inf, keep=folder)
        print(json.dumps(summary(results, quiet_ms=args.quiet_ms), indent=1))
    else:
        seeds = iter(range(args.seed, sys.maxsize))
        results = fuzz(seeds, seconds=60 * args.minutes)
        path = results_file.write("fuzz_runs", summary(results, quiet_ms=args.quiet_ms))
        print(f"{len(results)} cases: {path}")
    sys.exit(any(result["problems"] for result in results))


if __name__ == "__main__":
    main()
