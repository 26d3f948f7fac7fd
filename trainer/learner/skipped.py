"""What is said of an update that was dropped because its loss or gradient was not finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentloop.trainer.batch.train_batch import Sample

_MOST_NAMED = 16


def describe(samples: Sequence[Sample], rows: Sequence[Sequence[int]], losses: Sequence[float], norm: float) -> str:
    """A sentence for the log. `rows` are the micro-batches of this rank as indices of samples, `losses` their share.

    A loss that is not finite says which micro-batch it was; where all are finite, any of them may have been.
    """
    guilty = [row for row, loss in zip(rows, losses, strict=True) if not np.isfinite(loss)]
    indices = sorted(index for row in guilty or rows for index in row)
    names = [samples[index].trajectory_id or f"sample {index}" for index in indices[:_MOST_NAMED]]
    more = f" and {len(indices) - _MOST_NAMED} more" if len(indices) > _MOST_NAMED else ""
    what = "their loss is not finite" if guilty else f"gradient norm {norm}, no loss of a micro-batch is to blame"
    return f"An update was skipped. Trajectories that were in it ({what}): {', '.join(names) or 'none'}{more}."
