"""`QueryResult`, and its text for the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

Value = None | bool | int | float | Decimal | str | bytes
Row = tuple[Value, ...]


@dataclass(slots=True, frozen=True, kw_only=True)
class QueryResult:
    """Rows of a query, or the reason why there are none."""

    columns: Sequence[str] = ()
    rows: Sequence[Row] = ()
    truncated: bool = False
    """Whether the result had more rows or bytes than the limits."""
    error: str | None = None
    """Message of the database about a faulty query."""
    timed_out: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.error is None and not self.timed_out


def as_text(result: QueryResult, *, max_chars: int = 4000, max_cell_chars: int = 200) -> str:
    """Format a header and one line per row, with cells between bars, up to `max_chars` characters."""
    if result.timed_out:
        return f"The query took too long and was stopped after {result.seconds:.3g} s."
    if result.error is not None:
        return f"Error: {result.error}"
    if not result.columns:
        return "The query gave no rows."
    header = " | ".join(_cell(name, max_cell_chars) for name in result.columns)
    lines = [_cut(header, max_chars)]
    if len(header) > max_chars:
        lines.append(
            f"(the names of the {len(result.columns)} columns have more than {max_chars} characters and were cut)"
        )
    length = len(lines[0])
    shown = 0
    was_cut = False
    for row in result.rows:
        line = " | ".join(_cell(value, max_cell_chars) for value in row)
        length += len(line) + 1
        if length > max_chars and shown:
            break
        was_cut = len(line) > max_chars
        lines.append(_cut(line, max_chars))
        shown += 1
    if was_cut:
        lines.append(f"(the row above has more than {max_chars} characters and was cut)")
    if shown < len(result.rows) or result.truncated:
        more = "more than " if result.truncated else ""
        lines.append(f"({shown} of {more}{len(result.rows)} rows shown)")
    else:
        lines.append(f"({shown} row{'' if shown == 1 else 's'})")
    return "\n".join(lines)


def _cell(value: Value, max_chars: int) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        text = f"<{len(value)} bytes>"
    elif isinstance(value, float) and value.is_integer() and math.fabs(value) < 1e15:
        text = f"{value:.1f}"
    else:
        text = str(value).replace("\r", "\\r").replace("\n", "\\n")
    return _cut(text, max_chars)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
