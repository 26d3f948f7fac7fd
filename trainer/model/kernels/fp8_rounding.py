"""Round a matrix to 8 bits, in its own layout and transposed, as one node for torch.compile.

The product of a layer sums over its input features, and the gradient of its weight over the tokens. Matrix units read
FP8 only along the dimension of the sum, so both matrices of a layer are needed in both layouts.
"""

from __future__ import annotations

import torch
from torch import Tensor

NARROW, WIDE = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16
"""Matrix units need dimensions that are multiples of this."""


@torch.library.custom_op("agentloop::round_to_fp8", mutates_args=())
def round_to_fp8(
    matrix: Tensor, row_scale: Tensor | None, column_scale: Tensor | None, wide: bool
) -> tuple[Tensor, Tensor]:
    """Divide `matrix` [m, n] by scales and round it to e4m3, or to e5m2 if `wide`.

    Returns the rounded matrix [m', n], divided by `row_scale`, and the transposed one [n, m'], divided by
    `column_scale`. m' is the next multiple of 16, and the added rows are zero. A scale is float32 [] for all, or [m, 1]
    and [n, 1]. What has the scale None is not computed: an empty tensor. No value may be larger than its scale times
    the largest of FP8.
    """
    if matrix.is_cuda:
        from agentloop.trainer.model.kernels import fp8_rounding_triton

        return fp8_rounding_triton.round_to_fp8(matrix, row_scale, column_scale, wide)
    rounded, transposed = empty(matrix, row_scale, column_scale, wide)
    if row_scale is not None:
        rounded.zero_()[: len(matrix)] = (matrix.float() / row_scale).to(rounded.dtype)
    if column_scale is not None:
        transposed.zero_()[:, : len(matrix)] = (matrix.t().float() / column_scale).to(transposed.dtype)
    return rounded, transposed


@round_to_fp8.register_fake
def empty(matrix: Tensor, row_scale: Tensor | None, column_scale: Tensor | None, wide: bool) -> tuple[Tensor, Tensor]:
    """Return tensors for the results of `round_to_fp8`."""
    rows, columns = padded(matrix.shape[0]), matrix.shape[1]
    dtype = WIDE if wide else NARROW
    rounded = matrix.new_empty((0,) if row_scale is None else (rows, columns), dtype=dtype)
    return rounded, matrix.new_empty((0,) if column_scale is None else (columns, rows), dtype=dtype)


def padded(rows: int) -> int:
    """Return the next multiple of `MULTIPLE`."""
    return (rows + MULTIPLE - 1) // MULTIPLE * MULTIPLE
