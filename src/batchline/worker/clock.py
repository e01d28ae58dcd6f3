"""The clock that a worker measures its own lease by."""

import time
from collections.abc import Callable

Clock = Callable[[], float]


def steady() -> float:
    """Seconds that also pass while the machine sleeps, where the platform can tell: a laptop that was
    shut for an hour has lost its lease, though `time.monotonic` would not say so."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


if not hasattr(time, "CLOCK_BOOTTIME"):  # pragma: no cover - not Linux
    steady = time.monotonic
