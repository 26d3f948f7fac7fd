"""`fp8_rounding.round_to_fp8` in Triton: each block is read once, and written in its own layout and transposed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentloop.trainer.model.kernels import fp8_rounding

_ROWS, _COLUMNS, _WARPS = 128, 128, 8


@triton.jit  # type: ignore[untyped-decorator]
def _round(  # type: ignore[no-untyped-def]
    matrix,
    row_scale,
    column_scale,
    rounded,
    transposed,
    rows,
    columns,
    padded,
    stride,
    HAS_ROUNDED: tl.constexpr,
    HAS_TRANSPOSED: tl.constexpr,
    BY_ROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < padded)[:, None] & (column < columns)[None, :]
    exists = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(matrix + row[:, None] * stride + column[None, :], mask=exists, other=0.0).to(tl.float32)
    if HAS_ROUNDED:
        scales = row_scale + (row if BY_ROW else row * 0)
        scale = tl.load(scales, mask=row < rows, other=1.0)[:, None]
        block = tl.div_rn(values, tl.broadcast_to(scale, (ROWS, COLUMNS))).to(rounded.dtype.element_ty)
        tl.store(rounded + row[:, None] * columns + column[None, :], block, mask=inside)
    if HAS_TRANSPOSED:
        scales = column_scale + (column if BY_ROW else column * 0)
        scale = tl.load(scales, mask=column < columns, other=1.0)[None, :]
        block = tl.div_rn(values, tl.broadcast_to(scale, (ROWS, COLUMNS))).to(transposed.dtype.element_ty)
        tl.store(transposed + column[:, None] * padded + row[None, :], tl.trans(block), mask=tl.trans(inside))


def round_to_fp8(
    matrix: Tensor, row_scale: Tensor | None, column_scale: Tensor | None, wide: bool
) -> tuple[Tensor, Tensor]:
    """See `fp8_rounding.round_to_fp8`."""
    if matrix.stride(1) != 1:
        matrix = matrix.contiguous()
    rows, columns = matrix.shape
    rounded, transposed = fp8_rounding.empty(matrix, row_scale, column_scale, wide)
    padded = fp8_rounding.padded(rows)
    scales = [scale.contiguous() for scale in (row_scale, column_scale) if scale is not None]
    with torch.cuda.device(matrix.device):
        _round[(triton.cdiv(columns, _COLUMNS), triton.cdiv(padded, _ROWS))](
            matrix,
            scales[0],
            scales[-1],
            rounded,
            transposed,
            rows,
            columns,
            padded,
            matrix.stride(0),
            HAS_ROUNDED=row_scale is not None,
            HAS_TRANSPOSED=column_scale is not None,
            BY_ROW=scales[0].dim() > 0,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=_WARPS,
        )
    return rounded, transposed
