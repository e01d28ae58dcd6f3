"""How long the callbacks of event loops take, in processor time of their own thread.

with slowest_callback() as slowest:
    …
slowest.check()

Other processes on the machine do not count, nor do other threads: only what a loop itself is kept busy with.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

MAX_SECONDS = 0.05


@dataclass(slots=True)
class Slowest:
    seconds: float = 0.0
    callback: str = "none"
    callbacks: int = 0

    @property
    def is_quick(self) -> bool:
        return self.seconds < MAX_SECONDS

    def check(self) -> None:
        assert self.callbacks, "no event loop has run"
        assert self.is_quick, f"{self.seconds * 1000:.0f} ms in {self.callback}"


@contextmanager
def slowest_callback() -> Iterator[Slowest]:
    """Of all of asyncio's own loops in this process."""
    slowest = Slowest()
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        seconds = time.thread_time() - began
        slowest.callbacks += 1
        if seconds > slowest.seconds:
            slowest.seconds, slowest.callback = seconds, repr(handle)

    # What a whole test run has left behind is not the loop's to look through.
    gc.collect()
    gc.freeze()
    try:
        with patch.object(asyncio.Handle, "_run", timed):
            yield slowest
    finally:
        gc.unfreeze()
