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
_SMALLEST = 1e-12
"""Smallest scale: that of a matrix of zeros."""


@torch.library.custom_op("agentloop::round_to_fp8", mutates_args=())
def round_to_fp8(
    matrix: Tensor, plain: bool, transposed: bool, by_row: bool, wide: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Round `matrix` [m, n] to e4m3, or to e5m2 if `wide`, divided by scales.

    Returns the rounded matrix [m', n] if `plain`, the transposed one [n, m'] if `transposed`, and the scales of the
    first and of the second. m' is the next multiple of 16, and the added rows are zero. What is not asked for is empty.
    Scales are float32: [1, 1], or with `by_row` one for each row of the result, [m', 1] and [n, 1]. With its scale the
    largest value becomes the largest of FP8.
    """
    found = _empty(matrix, plain, transposed, by_row, wide)
    limit = torch.finfo(WIDE if wide else NARROW).max
    if matrix.is_cuda:
        from agentloop.trainer.model.kernels import fp8_rounding_triton

        fp8_rounding_triton.round_to_fp8(matrix, found, by_row, limit, _SMALLEST)
        return found
    for source, result, scale in ((matrix, found[0], found[2]), (matrix.t(), found[1], found[3])):
        if result.numel():
            largest = source.abs().amax(1, keepdim=True) if by_row else source.abs().amax()
            rows, columns = source.shape
            scale.fill_(_SMALLEST)[: rows if by_row else 1] = (largest.float() / limit).clamp(min=_SMALLEST)
            rounded = source.float() * (1.0 / scale[: rows if by_row else 1])
            result.zero_()[:rows, :columns] = rounded.to(result.dtype)
    return found


@round_to_fp8.register_fake
def _empty(
    matrix: Tensor, plain: bool, transposed: bool, by_row: bool, wide: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = (matrix.shape[0] + MULTIPLE - 1) // MULTIPLE * MULTIPLE, matrix.shape[1]
    dtype = WIDE if wide else NARROW

    def scale(number: int, wanted: bool) -> Tensor:
        return matrix.new_empty((number if by_row else 1, 1) if wanted else (0,), dtype=torch.float32)

    rounded = matrix.new_empty((rows, columns) if plain else (0,), dtype=dtype)
    turned = matrix.new_empty((columns, rows) if transposed else (0,), dtype=dtype)
    return rounded, turned, scale(rows, plain), scale(columns, transposed)
