"""Start learners on each rank: of a model that passes the check, and of one that does not. Run by torchrun."""

import sys

import pytest

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.learner.fsdp.learner import FsdpLearner


def main() -> None:
    passes, fails, *options = sys.argv[1:]
    changes: dict[str, object] = {"gather_once": True} if "gather_once" in options else {}
    if "sequence_parallel" in options:
        changes["sequence_parallel"] = 2
    FsdpLearner(LearnerConfig(model=passes, device="cpu", **changes))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Qwen3NextGatedDeltaNet"):
        FsdpLearner(LearnerConfig(model=fails, device="cpu", **changes))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
