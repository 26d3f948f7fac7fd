"""`rehearse_fine_tuning`: check a run on given answers without weights, and measure its conversations."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agentloop.trainer.fine_tuning.examples import Examples
from agentloop.trainer.fine_tuning.train import FineTuning
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.resume import describe_resumption
from agentloop.types.trajectory import SegmentKind, Trajectory

_MEASURED = 1000
"""Number of conversations to measure, from the first."""
_SHOWN_TURNS = 5
"""Largest number of turns of the first conversation to show."""


def rehearse_fine_tuning(run: FineTuning, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return derived settings as label -> text, and warnings. Raises `UserError` for the first mistake."""
    RunFolder(folder).check()
    config, rows = run.config, len(run.train)
    resumption = describe_resumption(config, RunFolder(folder))
    what = "pairs" if run.train.pairs else "conversations"
    streams = [stream for index in range(min(rows, _MEASURED)) for stream in run.train.trajectories(index)]
    lengths = np.array([len(stream) for stream in streams])
    trained = np.array([stream.num_sampled for stream in streams])
    held_out = 0 if run.held_out is None else len(run.held_out)
    lines = {
        "folder": str(folder),
        **resumption,
        what: f"{rows} to train on, {held_out} held out",
        "tokens": f"{lengths.mean():.0f} on average, {lengths.max()} at most; {trained.mean():.0f} of them trained",
        "longest": f"{run.train.max_tokens} tokens",
        "steps": f"{config.run.steps}, {config.run.steps * config.batch_size / rows:.2f} epochs",
        "batch size": f"{config.batch_size}",
        "updates": f"{config.learner.mini_batches} a step",
        "checkpoints": f"every {config.run.save_every} steps, keeping the last {config.run.keep_last}",
        "evaluation": f"every {config.eval.every} steps" if config.eval.every else "never",
        "first, trained": _trained_turns(run.train, streams[0]),
    }
    return lines, list(_warnings(lengths, trained, run.train.max_tokens))


def _trained_turns(examples: Examples, stream: Trajectory) -> str:
    """Return the text of each trained turn in quotes, so that one sees where a turn begins and ends."""
    ids = stream.token_ids.tolist()
    turns = [ids[each.start : each.end] for each in stream.segments if each.kind is SegmentKind.SAMPLED]
    more = f", and {len(turns) - _SHOWN_TURNS} more turns" if len(turns) > _SHOWN_TURNS else ""
    shown = [repr(_shortened(examples.renderer.decode(turn))) for turn in turns[:_SHOWN_TURNS]]
    return ", ".join(shown) + more if shown else "nothing"


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}"


def _warnings(lengths: np.ndarray, trained: np.ndarray, longest: int) -> list[str]:
    found = []
    if too_long := int((lengths > longest).sum()):
        found.append(f"{too_long} of {len(lengths)} token streams have more than {longest} tokens and are skipped.")
    if untrained := int((trained == 0).sum()):
        found.append(f"{untrained} of {len(lengths)} token streams have nothing to train and are skipped.")
    return found
