"""The clock that a worker measures its own lease by."""

import time
from collections.abc import Callable
from functools import partial

Clock = Callable[[], float]


# Seconds that also pass while the machine sleeps, where the platform can tell: a laptop that was shut for an
# hour has lost its lease, though `time.monotonic` would not say so. Read before every request, so there is no
# Python function around it.
steady: Clock = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
