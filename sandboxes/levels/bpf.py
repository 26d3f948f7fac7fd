"""Classic BPF, in which seccomp filters are written.

https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

LOAD, JUMP_EQUAL, JUMP_ABOVE, JUMP_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
"""Instruction codes."""
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
"""Answers of a filter; `ERRNO` is combined with an error number."""
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets into struct seccomp_data. Arguments have 8 bytes each, the low half first on both known architectures."""


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode one instruction; a jump skips `if_true` or `if_false` instructions."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def refuse(number: int, error: int) -> Iterator[bytes]:
    """Refuse the system call `number` with an error number."""
    yield instruction(JUMP_EQUAL, number, 0, 1)
    yield instruction(RETURN, ERRNO | error)
