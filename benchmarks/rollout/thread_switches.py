"""Measure a thread that trains beside agent loops in one process, with several switch intervals of Python.

    python -m benchmarks.rollout.thread_switches [--intervals 0.005 0.0005] [--repeats 5]

A learner in the process of its agent loops starts thousands of kernels a second, and releases Python's lock for each.
To go on it needs the lock again, which the agent loops give away once an interval (`sys.setswitchinterval`, 5 ms by
default). Here the agent loops play episodes with an engine that answers at once, and the thread trains a small model of
linear layers on a CPU. The result has updates a second of the thread and turns a second of the agent loops, medians of
`--repeats` rounds; `alone` is each without the other.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from typing import Any

import torch

from benchmarks import results_file
from benchmarks.rollout.loop_overhead import load_tokenizer, result_text, run_loop

_WIDTH, _LAYERS = 64, 16
_EPISODES, _TURNS = 64, 16


class Trainer(threading.Thread):
    """Updates a small model until `stop` is set."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.updates = 0

    def run(self) -> None:
        model = torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        inputs = torch.randn(_WIDTH, _WIDTH)
        while not self.stop.is_set():
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            self.updates += 1


def measure(tokenizer: Any, text: str, seconds: float, *, trains: bool, plays: bool) -> dict[str, float]:
    """Return updates and turns a second of at least `seconds`."""
    trainer, turns = Trainer(), 0
    if trains:
        trainer.start()
    began, updates = time.perf_counter(), trainer.updates
    while time.perf_counter() - began < seconds:
        if plays:
            asyncio.run(run_loop(tokenizer, _EPISODES, _TURNS, text))
            turns += _EPISODES * _TURNS
        else:
            time.sleep(seconds)
    took, updates = time.perf_counter() - began, trainer.updates - updates
    trainer.stop.set()
    if trains:
        trainer.join()
    return {"updates_per_second": updates / took, "turns_per_second": turns / took}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--intervals", type=float, nargs="+", default=[5e-3, 1e-3, 5e-4, 2e-4, 1e-4], help="seconds")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer()
    text = result_text(tokenizer, 39)
    measure(tokenizer, text, 1.0, trains=True, plays=True)
    alone: list[dict[str, float]] = []
    found: dict[float, list[dict[str, float]]] = {interval: [] for interval in args.intervals}
    for _ in range(args.repeats):
        trained = measure(tokenizer, text, args.seconds, trains=True, plays=False)
        played = measure(tokenizer, text, args.seconds, trains=False, plays=True)
        alone.append({name: trained[name] + played[name] for name in trained})
        for interval, rounds in found.items():
            sys.setswitchinterval(interval)
            rounds.append(measure(tokenizer, text, args.seconds, trains=True, plays=True))
            print(interval, rounds[-1], flush=True)
    together = {f"{interval * 1000:g} ms": medians(rounds) for interval, rounds in found.items()}
    results_file.write("thread_switches", vars(args) | {"alone": medians(alone), "together": together})


if __name__ == "__main__":
    main()
