"""Decide whether and when to retry an HTTP request."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""HTTP status codes after which a retry may succeed."""
_LONGEST_PAUSE = 20.0
"""Maximum seconds between attempts, unless the server asks for more."""
_LONGEST_REQUESTED = 120.0
"""Maximum seconds between attempts that a server may ask for."""


def seconds_before_retry(attempt: int, pause: float, headers: Mapping[str, str] | None = None) -> float:
    """Return the seconds to wait after failed attempt `attempt`, counted from 1.

    `pause` doubles with each attempt, and up to half of it is random jitter. A longer Retry-After among the `headers`
    of the response takes precedence.
    """
    seconds = min(pause * 2 ** (attempt - 1), _LONGEST_PAUSE) * random.uniform(0.5, 1.0)
    return max(seconds, min(_requested(headers or {}), _LONGEST_REQUESTED))


def _requested(headers: Mapping[str, str]) -> float:
    """Return the seconds in Retry-After, which is a number or a date; 0 if it is missing."""
    value = headers.get("retry-after", "")
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(value).timestamp() - time.time()
    except ValueError:
        return 0.0
