"""Kill parts of asynchronous runs at random: the run itself, its Ray workers, Ray's head, the sandbox daemon.

    python -m benchmarks.runs.chaos [--steps 40] [--rounds 4] [--modes partial ...] [--workers local ray]

SIGKILL ends the parts at random moments, in a random order. The script starts a killed run or daemon again, as a
supervisor would; workers restart by themselves. Then it checks the records: all steps were made, every task of the
sampler and every episode was trained exactly once, and none failed. The model is a script that runs Python in the
sandbox, and the learner is small; all killed parts are real. Writes results/chaos.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import psutil

from agentloop.envs.sampler import TaskSampler
from agentloop.trainer.run.folder import RunFolder
from agentloop.types.trajectory_io import read_jsonl

ROWS, GROUPS, SIZE = 50, 3, 4
"""Number of tasks, groups per step, episodes per group."""
HANGS = 300.0
"""Seconds without a new step after which a run counts as hung, on a busy machine."""
PARTS = {"local": ("run", "daemon"), "ray": ("run", "daemon", "worker", "head")}
"""Parts that can be killed, by `workers.kind`."""
SLOW_IMPORTS = [
    "agentloop.cli.train",
    "agentloop.api.progress",
    "agentloop.trainer.run.train",
    "agentloop.trainer.learner.fsdp.learner",
    "agentloop.recipes.tiny.tokenizer",
    "transformers.models.qwen3.modeling_qwen3",
]
"""Modules of a training run, preloaded so that processes start at once."""
_TASK = '''
import re
from functools import cache

from agentloop.recipes.tiny.tokenizer import build_tokenizer

tokenizer = cache(build_tokenizer)


def tasks(num):
    return [{"prompt": f"What is {n} plus {n + 1}?", "answer": 2 * n + 1} for n in range(num)]


def script(trajectory_id, turn, prompt, params):
    """Asks Python, and says what it said; every fourth episode guesses."""
    said = tokenizer().decode(list(prompt)).rpartition("<|im_start|>user")[2]
    # The engine has seen no turn of an episode whose first ones were recalled: what is shown says how far it is.
    if "<tool_response>" not in said and not trajectory_id.endswith("-3"):
        a, b = re.findall(r"\\d+", said)[:2]
        call = f'{{"name": "code_interpreter", "arguments": {{"code": "print({a} + {b})"}}}}'
        reply = f"<tool_call>\\n{call}\\n</tool_call>"
    else:
        reply = (re.findall(r"\\d+", said) or ["?"])[-1]
    return tokenizer()(reply + "<|im_end|>", add_special_tokens=False)["input_ids"]
'''


def write_recipe(folder: Path, *, workers: str, mode: str, daemon: str) -> Path:
    """Write a recipe that uses the sandbox daemon at that address."""
    import torch
    from transformers import Qwen3ForCausalLM

    from agentloop.recipes.tiny.model import model_config
    from agentloop.recipes.tiny.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    config = model_config(tokenizer)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 32, 64, 2
    config.layer_types = config.layer_types[:2]
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "task.py").write_text(_TASK)
    settings: dict[str, Any] = {
        "model": "./model",
        "data": {"train": "task.py:tasks", "train_options": {"num": ROWS}},
        "env": {
            "tools": [{"name": "agentloop.tools.code_interpreter:CodeInterpreter", "options": {"sandbox": daemon}}],
            "reward": "last_number",
        },
        "limits": {"max_turns": 3, "max_turn_tokens": 64, "max_tokens": 512},
        "engine": {
            "name": "scripted",
            "options": {"script": "task.py:script", "seconds_per_turn": 0.1},
            "max_concurrency": 8,
        },
        "algorithm": {"groups_per_step": GROUPS, "group_size": SIZE},
        "learner": {"lr": 1e-3, "token_budget": 1024, "device": "cpu", "corrections": ["truncate"]},
        "staleness": {"mode": mode, "max_staleness": 2},
        "run": {"save_every": 1, "save_trajectories": 10_000, "loggers": []},
        "workers": {"kind": workers, "count": 2 if workers == "ray" else 1, "max_restarts": 99, "max_replays": 99},
    }
    (folder / "config.yaml").write_text(json.dumps(settings))
    return folder / "config.yaml"


class Daemon:
    """Sandbox daemon that can be killed and started again at the same address."""

    def __init__(self, isolation: str) -> None:
        self._options = ["--isolation", isolation, "--slots", "2"]
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "agentloop.tools", "serve", "--port", str(self._port), *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        printed = ""
        while not (address := re.search(r"http://127\.0\.0\.1:(\d+)", printed)):
            line = self._process.stdout.readline()
            assert line, f"the daemon ended: {printed}"
            printed += line
        self._port = int(address[1])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class RunProcess(Protocol):
    """The part of `multiprocessing.Process` that a driver needs."""

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    def is_alive(self) -> bool: ...

    def kill(self) -> None: ...

    def join(self) -> None: ...


class Driver:
    """Process of `agentloop train`, forked from one that has done the slow imports."""

    def __init__(self, config: Path, folder: Path, steps: int) -> None:
        self.folder = RunFolder(folder)
        self.arguments = ["train", str(config), f"run.folder={folder}", f"run.steps={steps}"]
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(SLOW_IMPORTS)
        self.process: RunProcess | None = None

    @property
    def num_steps(self) -> int:
        """Number of steps done so far."""
        file = self.folder.metrics_file
        return file.read_bytes().count(b"\n") if file.is_file() else 0

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def start(self) -> None:
        from agentloop.cli import main

        process = self._context.Process(target=main, args=(self.arguments,))
        process.start()
        self.process = process

    def children(self, name: str = "") -> list[psutil.Process]:
        """Return descendants whose command contains the name."""
        assert self.process is not None
        found = []
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if name in " ".join(child.cmdline()):
                        found.append(child)
        return found

    def kill(self) -> None:
        """Kill the process and every descendant that has not ended."""
        assert self.process is not None
        below = self.children()
        self.process.kill()
        self.process.join()
        _, left = psutil.wait_procs(below, timeout=10)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()


class Chaos:
    """One run and its kills."""

    def __init__(self, driver: Driver, daemon: Daemon, rng: random.Random, pause: float) -> None:
        self.driver, self.daemon = driver, daemon
        self._pause = pause
        self.kills: Counter[str] = Counter()
        self.starts = 0
        """Seconds of the run."""
        self.silences: dict[str, float] = {}
        """Longest seconds between two steps after a kill, restarts included, by the part killed last."""
        self._last = "nothing"
        self._rng = rng
        self._seen, self._since = 0, time.monotonic()
        self._done: dict[str, Callable[[], bool]] = {
            "run": self._kill_run,
            "daemon": self._kill_daemon,
            "worker": lambda: self._kill_child("ray::Replica"),
            "head": lambda: self._kill_child("gcs_server"),
        }

    def run(self, parts: Sequence[str]) -> None:
        """Kill these parts one after the other, each after some progress, then let the run finish."""
        for part in parts:
            self._until_progress()
            killed = False
            while self.driver.is_alive and not killed:
                killed = self._done[part]()
                self._wait(0.05)
            self.kills[part] += killed
            self._last = part
        while self._keep_running():
            self._wait(0.05)

    def _until_progress(self) -> None:
        """Wait for a new step and a random moment, so that a kill can hit any stage of the next one."""
        before = self.driver.num_steps
        while self._keep_running() and self.driver.num_steps <= before:
            self._wait(0.02)
        self._wait(self._rng.uniform(0.0, self._pause))

    def _keep_running(self) -> bool:
        """Return whether the run continues. Start it again if another kill ended it."""
        if self.driver.is_alive:
            return True
        if self.driver.process is not None and self.driver.process.exitcode == 0:
            return False
        if self.driver.process is not None:
            self.driver.kill()
        self.driver.start()
        self.starts += 1
        return True

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        steps, now = self.driver.num_steps, time.monotonic()
        self.silences[self._last] = max(self.silences.get(self._last, 0.0), now - self._since)
        if steps != self._seen:
            self._seen, self._since = steps, now
        assert now - self._since < HANGS, f"no step since {now - self._since:.0f} s, {steps} are done; {self.kills}"

    def _kill_run(self) -> bool:
        self.driver.kill()
        return True

    def _kill_daemon(self) -> bool:
        self.daemon.kill()
        self._wait(self._rng.uniform(0.0, self._pause))
        self.daemon.start()
        return True

    def _kill_child(self, name: str) -> bool:
        children = self.driver.children(name)
        if children:
            with suppress(psutil.NoSuchProcess):
                self._rng.choice(children).kill()
        return bool(children)


def check(folder: RunFolder, steps: int) -> dict[str, float]:
    """Check the records of a finished run: no step, task or episode is missing or was trained twice."""
    lines = [line for line in folder.read_metrics() if line["step"]]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert [line["policy_version"] for line in lines] == list(range(1, steps + 1))
    trained = [
        trajectory
        for step in range(1, steps + 1)
        for trajectory in read_jsonl(folder.trajectories / f"step_{step:06d}.jsonl.gz")
    ]
    names = Counter(trajectory.trajectory_id for trajectory in trained)
    assert len(names) == len(trained) == steps * GROUPS * SIZE, "each episode once"
    expected = Counter(TaskSampler(ROWS).take(steps * GROUPS))
    played = Counter(trajectory.messages[0]["content"] for trajectory in trained)
    assert sorted(played.values()) == sorted(SIZE * count for count in expected.values()), "each task of the sampler"
    last = lines[-1]
    dropped = {name: value for name, value in last.items() if name.startswith("queue/dropped")}
    assert last["queue/admitted"] == last["queue/trained"] == len(trained), dropped
    assert max(line["staleness/max"] for line in lines) <= 2
    return {
        "episodes_trained": len(trained),
        "episodes_failed": sum(line.get("failures/episodes", 0.0) for line in lines),
        "reward": sum(trajectory.reward or 0.0 for trajectory in trained) / len(trained),
    }


def torment(
    folder: Path,
    *,
    mode: str,
    workers: str,
    steps: int,
    parts: Sequence[str],
    rng: random.Random,
    isolation: str = "slots",
    pause: float = 1.0,
    make_driver: Callable[[Path, Path, int], Driver] = Driver,
) -> dict[str, Any]:
    """Make a run and kill these parts, each up to `pause` seconds after a step.

    Raises `AssertionError` if anything is lost.
    """
    daemon = Daemon(isolation)
    try:
        config = write_recipe(folder, workers=workers, mode=mode, daemon=daemon.url)
        chaos = Chaos(make_driver(config, folder / "run", steps), daemon, rng, pause)
        started = time.monotonic()
        try:
            chaos.run(parts)
        finally:
            if chaos.driver.process is not None:
                chaos.driver.kill()
        seconds = time.monotonic() - started
    finally:
        daemon.kill()
    return {
        "kills": dict(chaos.kills),
        "starts": chaos.starts,
        "seconds": round(seconds, 1),
        "longest_silence_seconds_after": {part: round(seconds, 1) for part, seconds in chaos.silences.items()},
    } | check(chaos.driver.folder, steps)


def main() -> None:
    import results_file

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=4, help="number of kills of each part")
    parser.add_argument("--modes", nargs="+", default=["stream", "stale", "partial"])
    parser.add_argument("--workers", nargs="+", default=["local", "ray"])
    parser.add_argument("--isolation", default="slots", help="of the sandbox daemon")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    result: dict[str, Any] = {"steps": args.steps, "seed": args.seed, "runs": {}}
    rng = random.Random(args.seed)
    for workers in args.workers:
        for mode in args.modes:
            with tempfile.TemporaryDirectory() as folder:
                parts = list(PARTS[workers]) * args.rounds
                rng.shuffle(parts)
                shape = {"steps": args.steps, "parts": parts, "isolation": args.isolation}
                found = torment(Path(folder), mode=mode, workers=workers, rng=rng, **shape)
            result["runs"][f"{workers} {mode}"] = found
            print(workers, mode, found, flush=True)
            results_file.write("chaos", result)


if __name__ == "__main__":
    main()
