"""`SampleMasks`: masks of the tokens that a grammar allowed at each trained token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from agentloop.grammars.of_model import ModelGrammars
from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.batch.trained_tokens import to_device
from agentloop.trainer.model.kernels.allowed_tokens import AllowedTokens


class SampleMasks:
    """Computes masks with the tokenizer of a model folder, as the engine did while it sampled.

    A constrained token was sampled from the distribution over allowed tokens. So its log-probability and gradient are
    correct only if the learner masks the same tokens.
    """

    def __init__(self, model: Path) -> None:
        self._grammars = ModelGrammars(model)

    def of(self, samples: Sequence[Sample], device: torch.device) -> AllowedTokens | None:
        """Return the masks of the trained tokens of a row, in the order of its samples; None if there are none.

        Raises `UserError` if xgrammar is missing, or if it does not allow the tokens that the engine sampled.
        """
        places: list[NDArray[np.int64]] = []
        bits: list[NDArray[np.int32]] = []
        start = 0
        for sample in samples:
            for turn in sample.constrained:
                found = self._grammars.compiler.masks(turn.grammar, sample.token_ids[turn.start : turn.end].tolist())
                is_trained = sample.loss_mask[turn.start + found.places]
                before = int(sample.loss_mask[: turn.start].sum()) - 1 + start
                numbers = before + np.cumsum(sample.loss_mask[turn.start : turn.end])
                places.append(numbers[found.places[is_trained]])
                bits.append(found.bits[is_trained])
            start += sample.num_sampled
        if not sum(map(len, places)):
            return None
        return AllowedTokens(np.concatenate(places), to_device(np.concatenate(bits), device))
