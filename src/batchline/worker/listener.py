"""Receives notifications of batch events on its own connection, outside any pooler.

Everything works without it, only later: polls find the same work.
"""

from collections.abc import Callable

import structlog

from batchline.store.events import Event, notifications
from batchline.store.session import StoreUnavailable
from batchline.worker.pause import Pause
from batchline.worker.service import Service
from batchline.worker.tasks import first

_log = structlog.get_logger("batchline.listener")


class Listener(Service):
    name = "listener"

    def __init__(self, url: str, on_event: Callable[[Event], None]) -> None:
        super().__init__()
        self._url = url
        self._on_event = on_event

    def wake(self) -> None:
        """Connect now, if it waits to connect again. A drain does not wait for it, so it stays idle."""
        self._woken.set()

    async def run(self) -> None:
        pause = Pause(first=0.2, maximum=15.0)
        while True:
            try:
                async for event in notifications(self._url):
                    pause.reset()
                    self._on_event(event)
            except StoreUnavailable as error:
                _log.warning("not listening", reason=str(error))
            self._woken.clear()
            await first(pause.wait(), self._woken.wait())
