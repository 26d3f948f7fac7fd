"""`PlacementConfig`: how many GPUs a run has, from which everything else follows."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentloop.registry.options import Config


class PlacementConfig(Config):
    """GPUs of a run. Without `n_gpus` nothing is derived: each section says itself what it uses."""

    n_gpus: int | None = Field(default=None, ge=1)
    """GPUs of all nodes together."""
    nnodes: int = Field(default=1, ge=1)
    """Nodes, each with the same number of GPUs. The learner is on the one where the run is started, and on
    further ones where it has more GPUs than that."""
    layout: Literal["auto", "colocated", "separate", "mixed"] = "auto"
    """colocated: every GPU has a part of the learner and of an engine. separate: engines have GPUs of their own, and
    sample while the learner trains. mixed: engines are on all GPUs, the learner on some of them. auto: what is
    estimated to be fastest."""
    learner_gpus: int | None = Field(default=None, ge=1)
    """Of a separate or mixed layout; None: what is estimated to be fastest."""
    sleep: Literal["auto"] | bool = "auto"
    """true: engines give back their GPU's memory while the learner trains, and the learner while they sample
    (docs/distributed.md). auto: where both are on the same GPUs and do not fit beside each other, or steps are
    estimated to be shorter; without `n_gpus` false."""
    gpu: str | None = None
    """Kind of GPU, as `agentloop plan --gpu`; None: the one that is here."""

    @model_validator(mode="after")
    def _counts_what_it_divides(self) -> Self:
        """What says how GPUs are divided is not left out in silence."""
        given = [
            name for name in ("nnodes", "learner_gpus") if getattr(self, name) != type(self).model_fields[name].default
        ]
        if given and self.n_gpus is None:
            raise ValueError(f"{' and '.join(given)} divide n_gpus, the GPUs of all nodes together: set it too")
        if self.layout == "colocated" and self.learner_gpus not in (None, self.n_gpus):
            raise ValueError(
                f"learner_gpus is {self.learner_gpus} and layout colocated: the learner is then on all {self.n_gpus} "
                "GPUs. Leave learner_gpus out, or set layout=mixed"
            )
        return self

    @property
    def sleeps(self) -> bool:
        """Of a config in which everything is settled."""
        return self.sleep is True
