"""Time limits of async calls with one timer for all of them.

All calls of an operation have the same limit, so they expire in the order in which they began. A timer per
call, as of `asyncio.timeout`, costs more than the rest of a call whose function does nothing.
"""

import asyncio


class LimitedCall:
    """A call in the task that runs now. `expired`: its task was cancelled because its time was up."""

    __slots__ = ("ends", "expired", "task")

    def __init__(self, task: "asyncio.Task[object]", ends: float) -> None:
        self.task = task
        self.ends = ends
        self.expired = False


class TimeLimits:
    """`begin` before a call, `end` after it, whatever happens. None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        # The oldest first.
        self._calls: dict[LimitedCall, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> LimitedCall | None:
        if self._seconds is None:
            return None
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        call = LimitedCall(task, loop.time() + self._seconds)
        self._calls[call] = None
        if self._timer is None:
            self._timer = loop.call_at(call.ends, self._due)
        return call

    def end(self, call: LimitedCall | None) -> None:
        if call is None:
            return
        if call.expired:
            # The cancellation was ours, and not that of the task.
            call.task.uncancel()
        else:
            del self._calls[call]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, now = None, loop.time()
        while self._calls:
            oldest = next(iter(self._calls))
            if oldest.ends > now:
                self._timer = loop.call_at(oldest.ends, self._due)
                return
            del self._calls[oldest]
            oldest.expired = True
            oldest.task.cancel()
