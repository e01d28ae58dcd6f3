"""First results of batches, for callers of one item: one statement looks for all that may be there.

A notification says that a batch has its last result. Without one, each batch is looked at after a pause that
grows: notifications can be lost, a pooler may swallow them, and a first result may come long before the last.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from heapq import nsmallest
from time import monotonic
from uuid import UUID

import structlog

from batchline.app.errors import translated
from batchline.operations.errors import BatchlineError, DatabaseUnavailable
from batchline.store import python_results
from batchline.store.events import Event
from batchline.store.pool import Sessions
from batchline.store.python_results import FirstResult
from batchline.worker.pause import Pause

# Seconds between two looks at a batch without a notification. The first is longer if notifications arrive.
_MIN_PAUSE, _MAX_PAUSE, _GROWTH = 0.005, 0.25, 1.5
_NOTIFIED_PAUSE = 0.05
# Batches per look.
_PAGE = 500

_log = structlog.get_logger("batchline.app")


@dataclass(slots=True)
class _Expected:
    answer: asyncio.Future[FirstResult]
    pause: float
    look_at: float


class FirstResults:
    """Lives on one event loop. Its task runs only while somebody waits."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._expected: dict[UUID, _Expected] = {}
        # A notification has arrived, so others will, too.
        self._hears = False
        self._woken = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def expect(self, batch_id: UUID, *, last: bool) -> asyncio.Future[FirstResult]:
        """The answer comes when the first item of the batch has ended. Cancel it to wait no longer. `last`:
        it is the only item, so there is a notification."""
        answer: asyncio.Future[FirstResult] = asyncio.get_running_loop().create_future()
        pause = _NOTIFIED_PAUSE if last and self._hears else _MIN_PAUSE
        self._expected[batch_id] = _Expected(answer, pause, monotonic() + pause)
        answer.add_done_callback(lambda _: self._expected.pop(batch_id, None))
        self._woken.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return answer

    def heard(self, event: Event) -> None:
        if event.kind == "listening":
            # Earlier ones were missed.
            self._due_now(list(self._expected))
            return
        self._hears = True
        if event.kind in ("finished", "ended") and event.batch_id is not None:
            self._due_now([event.batch_id])

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._fail(BatchlineError("the app was closed before this call had its result"))

    def _due_now(self, batch_ids: Collection[UUID]) -> None:
        for batch_id in batch_ids:
            if (expected := self._expected.get(batch_id)) is not None:
                expected.look_at = 0.0
                self._woken.set()

    async def _look(self) -> None:
        pause = Pause()
        try:
            while self._expected:
                try:
                    with translated():
                        await self._look_once()
                    pause.reset()
                except DatabaseUnavailable as error:
                    _log.warning("calls wait for the database", reason=str(error))
                    await pause.wait()
        except Exception as error:  # noqa: BLE001
            # Whoever waits must not wait for ever.
            self._fail(error)

    async def _look_once(self) -> None:
        self._woken.clear()
        now = monotonic()
        # The longest due first, and before them those that a notification was about: however many wait.
        overdue = [id for id, each in self._expected.items() if each.look_at <= now]
        due = nsmallest(_PAGE, overdue, key=lambda id: self._expected[id].look_at)
        if not due:
            await self._until(min(each.look_at for each in self._expected.values()))
            return
        for batch_id in due:
            expected = self._expected[batch_id]
            expected.look_at = now + expected.pause
            expected.pause = min(expected.pause * _GROWTH, _MAX_PAUSE)
        async with self._sessions.one() as session:
            found = await python_results.first_results(session, due)
        for result in found:
            if (answered := self._expected.get(result.batch_id)) and not answered.answer.done():
                answered.answer.set_result(result)

    async def _until(self, at: float) -> None:
        try:
            async with asyncio.timeout(max(at - monotonic(), 0)):
                await self._woken.wait()
        except TimeoutError:
            return

    def _fail(self, error: Exception) -> None:
        for expected in list(self._expected.values()):
            if not expected.answer.done():
                expected.answer.set_exception(error)
