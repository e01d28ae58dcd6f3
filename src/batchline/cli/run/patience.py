"""Waiting for a database that is unavailable for a while, as in a failover."""

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

import structlog

from batchline.store.session import StoreUnavailable
from batchline.worker.pause import Pause

Result = TypeVar("Result")
# How long `run` waits for the database before the work starts, and when it reads the output. A running worker
# waits without limit.
_PATIENCE = 120.0

_log = structlog.get_logger("batchline.run")


async def patiently(act: Callable[[], Awaitable[Result]]) -> Result:
    """Retry while the database is unavailable, as in a failover. `act` must be repeatable."""
    pause = Pause()
    until = monotonic() + _PATIENCE
    while True:
        try:
            return await act()
        except StoreUnavailable as error:
            if monotonic() >= until:
                raise
            _log.warning("waiting for the database", reason=str(error))
            await pause.wait()
