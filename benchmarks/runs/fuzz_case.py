"""One fuzz case in a separate process: the run, its outcome, and the lag of its event loop."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.process.atomic import write_text
from agentloop.trainer.run.train import train
from agentloop.trainer.schedule.observers import Observer, Stage

_RESULT = "outcome.json"
_INTERVAL = 0.005
"""Seconds between two measurements of the loop's lag."""


@dataclass(slots=True, frozen=True)
class Outcome:
    """How a run ended."""

    status: str
    """done, refused (a `UserError` before the first step), stopped (one later), or crashed."""
    message: str = ""
    lags_ms: Sequence[float] = ()

    @classmethod
    def read(cls, folder: Path) -> Outcome | None:
        """Return the outcome in the folder of a case, None if the run was killed."""
        file = folder / _RESULT
        return cls(**json.loads(file.read_text())) if file.is_file() else None


class LagWatcher(Observer):
    """Measures the lag of the loop from the first episodes on."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def began(self) -> bool:
        return self._task is not None

    def on_stage(self, step: int, stage: Stage) -> None:
        if self._task is None and stage in (Stage.ROLLOUT, Stage.EVAL):
            self._task = asyncio.get_running_loop().create_task(measure_lag(self.lags))


async def measure_lag(lags: list[float]) -> None:
    """Append the lag of the loop in milliseconds, every few milliseconds, until cancelled."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + _INTERVAL
        await asyncio.sleep(_INTERVAL)
        lags.append(round(1000 * (clock() - due), 2))


def p99(lags: Sequence[float]) -> float | None:
    """Return the 99th percentile; None without measurements."""
    return round(float(np.percentile(lags, 99)), 2) if lags else None


def play(folder: Path) -> None:
    """Train by the config in the folder of a case, and write the outcome there."""
    os.setsid()
    os.environ["FUZZ_FOLDER"] = str(folder)
    log = (folder / "log").open("a")
    os.dup2(log.fileno(), sys.stdout.fileno())
    os.dup2(log.fileno(), sys.stderr.fileno())
    faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)
    watcher = LagWatcher()
    outcome = _outcome(folder, watcher)
    write_text(folder / _RESULT, json.dumps(asdict(outcome)))


def _outcome(folder: Path, watcher: LagWatcher) -> Outcome:
    try:
        config = load_config(RunConfig, folder / "config.yaml")
        asyncio.run(train(config, folder / "run", watcher))
    except UserError as error:
        return Outcome("stopped" if watcher.began else "refused", str(error))
    except Exception:  # the boundary of the case: every other error is a finding
        return Outcome("crashed", traceback.format_exc()[-3000:])
    return Outcome("done", lags_ms=watcher.lags)


def write_model(folder: Path) -> Path:
    """Write a randomly initialised model of two layers with its tokenizer."""
    import torch
    from transformers import Qwen3ForCausalLM

    from agentloop.recipes.tiny.model import model_config
    from agentloop.recipes.tiny.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    config = model_config(tokenizer)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 32, 64, 2
    config.layer_types = config.layer_types[:2]
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
