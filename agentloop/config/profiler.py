"""`ProfilerConfig`: what is recorded of where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from agentloop.registry.options import Config

ProfilerTool = Literal["torch", "nsys"]


class RecordingConfig(Config):
    """See `run_config.ProfilerConfig`."""

    folder: str
    """Of the run."""
    steps: tuple[int, ...] = ()
    ranks: tuple[int, ...] | None = (0,)
    tool: ProfilerTool = "torch"
    discrete: bool = False
    spans: bool = False


class ProfilerConfig(Config):
    """What is recorded of where the time goes, beside the seconds in metrics.jsonl."""

    timeline: bool = False
    """Write stages, episodes and the phases of every rank of the learner as a trace for ui.perfetto.dev,
    timeline-STEP.json in the folder of the run."""
    steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Of which the learner is profiled."""
    ranks: tuple[Annotated[int, Field(ge=0)], ...] | None = (0,)
    """Of the learner; None: all."""
    tool: ProfilerTool = "torch"
    """torch: profiles/learner-rankR-stepN.json.gz in the folder of the run, for ui.perfetto.dev. nsys: only marks where
    a profile begins and ends; start the run as `nsys profile --capture-range=cudaProfilerApi
    --capture-range-end=repeat ...`."""
    discrete: bool = False
    """A profile for each step, of the learner's part of it. Else one for steps that follow each other, from the
    beginning of the first to the end of the last, with what the process does between them."""

    def of_learner(self, folder: Path) -> RecordingConfig | None:
        """What the processes of the learner record; None where that is nothing."""
        if not self.timeline and not self.steps:
            return None
        return RecordingConfig(
            folder=str(folder.absolute()),
            steps=self.steps,
            ranks=self.ranks,
            tool=self.tool,
            discrete=self.discrete,
            spans=self.timeline,
        )
