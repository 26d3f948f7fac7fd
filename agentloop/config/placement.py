"""`PlacementConfig`: the GPUs of a run, which determine its workers and learner ranks."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentloop.registry.options import Config


class PlacementConfig(Config):
    """GPUs of a run. Without `n_gpus` nothing is derived: workers and learner set their own GPUs."""

    n_gpus: int | None = Field(default=None, ge=1)
    """Total number of GPUs of all nodes."""
    nnodes: int = Field(default=1, ge=1)
    """Number of nodes, each with the same number of GPUs. The learner uses the node on which the run starts, and
    further nodes if it needs more GPUs."""
    layout: Literal["auto", "colocated", "separate", "mixed"] = "auto"
    """colocated: every GPU has a part of the learner and of an engine. separate: engines have their own GPUs and sample
    while the learner trains. mixed: engines are on all GPUs, the learner on some. auto: the layout with the shortest
    estimated step."""
    learner_gpus: int | None = Field(default=None, ge=1)
    """Number of GPUs of the learner in a separate or mixed layout; None: the number with the shortest estimated
    step."""
    sleep: Literal["auto"] | bool = "auto"
    """true: engines free their GPU memory while the learner trains, and the learner frees its memory while they sample
    (docs/concepts/placement.md). auto: true if both share GPUs and do not fit in memory together, or if it shortens the
    estimated step; false without `n_gpus`."""
    gpu: str | None = None
    """GPU model, as in `agentloop plan --gpu`; None: that of this machine."""

    @model_validator(mode="after")
    def _counts_what_it_divides(self) -> Self:
        """Reject settings that divide the GPUs if n_gpus is missing."""
        given = [
            name for name in ("nnodes", "learner_gpus") if getattr(self, name) != type(self).model_fields[name].default
        ]
        if given and self.n_gpus is None:
            raise ValueError(
                f"{' and '.join(given)} divide n_gpus, the total number of GPUs: set placement.n_gpus, too"
            )
        if self.layout == "colocated" and self.learner_gpus not in (None, self.n_gpus):
            raise ValueError(
                f"learner_gpus is {self.learner_gpus} and layout colocated: the learner is then on all {self.n_gpus} "
                "GPUs. Leave learner_gpus out, or set layout=mixed"
            )
        return self

    @property
    def sleeps(self) -> bool:
        """Whether engines and learner take turns on the GPUs; valid only in a resolved config."""
        return self.sleep is True
