"""Goes on with actions on many batches when a poll says that some are due.

It has a session of its own, so that a long action delays no poll and no maintenance, and closes it
afterwards.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import structlog

from batchline.store.session import Session, StoreUnavailable
from batchline.worker.service import Service

_log = structlog.get_logger("batchline.bulk_runner")

ContinueAction: TypeAlias = Callable[[Session], Awaitable[bool]]
"""Do the next batches of an action that is due; False: none is."""


async def no_actions(session: Session) -> bool:
    """For workers that leave actions to others."""
    return False


class BulkRunner(Service):
    name = "bulk runner"

    def __init__(self, session: Session, continue_action: ContinueAction) -> None:
        super().__init__()
        self._session = session
        self._continue = continue_action
        self._stopping = False

    def wake(self) -> None:
        # A worker that leaves actions to others must not open a connection for them.
        if self._continue is not no_actions:
            super().wake()

    def stop(self) -> None:
        # Any worker may go on with it.
        self._stopping = True
        self.idle.set()

    async def _work(self) -> None:
        try:
            while not self._stopping and await self._continue(self._session):
                pass
        except StoreUnavailable as error:
            # It is due again when its lease ends.
            _log.warning("cannot go on with an action", reason=str(error))
        finally:
            await self._session.close()
