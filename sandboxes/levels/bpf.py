"""Classic BPF, in which seccomp filters are written.

https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

LOAD, JUMP_EQUAL, JUMP_ABOVE, JUMP_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
"""Instruction codes. `JUMP_ABOVE` jumps if the value is greater or equal."""
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
"""Decisions of a filter; `ERRNO` is combined with an error number."""
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets into struct seccomp_data. Arguments have 8 bytes each; both supported architectures are little-endian."""


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode one instruction; a jump skips `if_true` or `if_false` instructions."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def refuse(number: int, error: int) -> list[bytes]:
    """Refuse the system call `number` with an error number; with 0, the call succeeds without effect."""
    return [instruction(JUMP_EQUAL, number, 0, 1), instruction(RETURN, ERRNO | error)]


class Condition(NamedTuple):
    """An argument of a system call, by its index, and the values that it may have."""

    argument: int
    values: Sequence[int]
    mask: int = 0xFFFFFFFF
    """Bits to compare in the low half. The high half is ignored, which is right for arguments of 32 bits."""


def only(number: int, conditions: Sequence[Condition], error: int, answer: int = ALLOW) -> list[bytes]:
    """Give `answer` to the system call `number` if all conditions hold; otherwise refuse it."""
    body: list[bytes] = []
    for argument, values, mask in conditions:
        body += [instruction(LOAD, ARGUMENTS + 8 * argument), instruction(AND, mask)]
        body += [instruction(JUMP_EQUAL, value, len(values) - index) for index, value in enumerate(values)]
        body.append(instruction(RETURN, ERRNO | error))
    body.append(instruction(RETURN, answer))
    return [instruction(JUMP_EQUAL, number, 0, len(body)), *body]


def allow_ranges(ranges: Sequence[tuple[int, int]], error: int) -> list[bytes]:
    """Allow system calls in sorted ranges of (first, last), found by bisection; refuse all others."""
    if len(ranges) == 1:
        first, last = ranges[0]
        return [
            instruction(JUMP_ABOVE, first, 0, 1),
            instruction(JUMP_ABOVE, last + 1, 0, 1),
            instruction(RETURN, ERRNO | error),
            instruction(RETURN, ALLOW),
        ]
    middle = len(ranges) // 2
    below = allow_ranges(ranges[:middle], error)
    return [
        instruction(JUMP_ABOVE, ranges[middle][0], len(below), 0),
        *below,
        *allow_ranges(ranges[middle:], error),
    ]
