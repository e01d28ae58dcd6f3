"""Cancels tasks at providers whose batch has ended without them: it was cancelled or deleted, or it expired.

Woken at the start, when this worker has ended such a batch, when one was deleted, and when maintenance is
due: a task that could not be cancelled is tried again then. Its connection is open only meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import structlog

from batchline.model import Item
from batchline.store import provider_chunks, providers
from batchline.store.providers import AbandonedTask
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.service import Service

# A task that could not be cancelled so often is left to the provider.
_MAX_ATTEMPTS = 10
# A chunk of thousands of lines is tried for as long as the provider works on it: a day.
_MAX_CHUNK_ATTEMPTS = 1500

_log = structlog.get_logger("batchline.task_canceller")

CancelTask: TypeAlias = Callable[[Item], Awaitable[bool]]
"""Cancel an item's task at its provider; False: try again later."""


async def nothing_to_cancel(item: Item) -> bool:
    """For executors whose tasks cannot be cancelled."""
    return True


class TaskCanceller(Service):
    name = "task canceller"

    def __init__(self, session: Session, scope: Scope, cancel: CancelTask) -> None:
        super().__init__()
        self._session = session
        self._scope = scope
        self._cancel_task = cancel
        self.wake()

    def stop(self) -> None:
        # Any worker may do it later.
        self.idle.set()

    async def _work(self) -> None:
        try:
            while tasks := await providers.take_abandoned(self._session, self._scope):
                ended = await asyncio.gather(*(self._cancel(task) for task in tasks))
                done = [task for task, over in zip(tasks, ended, strict=True) if over]
                await providers.drop_abandoned(self._session, done)
        except StoreUnavailable as error:
            _log.warning("cannot cancel tasks yet", reason=str(error))
        finally:
            await self._session.close()

    async def _cancel(self, task: AbandonedTask) -> bool:
        """Whether nothing is left to do for the task."""
        if await self._cancel_task(task.item):
            return True
        chunk = task.task_id.startswith(provider_chunks.TASK)
        over = task.attempts >= (_MAX_CHUNK_ATTEMPTS if chunk else _MAX_ATTEMPTS)
        if over or task.attempts <= _MAX_ATTEMPTS:
            _log.warning("cannot cancel a task", task=task.task_id, given_up=over)
        return over
