"""Tells when the first of the retries that are expected comes due; of later ones it knows nothing."""

import asyncio
from collections.abc import Callable


class RetryTimer:
    def __init__(self, on_due: Callable[[], None]) -> None:
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> bool:
        return self._timer is not None

    def expect(self, delay: float) -> None:
        """One comes due in so many seconds. Told a moment later than the database's clock says."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay + 0.002
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._due)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self._on_due()
