"""Appends calls to their batch, many at once, and finds lines that were appended before."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from batchline.app.errors import translated
from batchline.app.models.call_batch import CallBatch
from batchline.app.models.pending_call import PendingCall
from batchline.operations.errors import BatchClosed, BatchlineError, DatabaseUnavailable
from batchline.store import calls, feeding
from batchline.store.pool import Sessions
from batchline.store.session import InTransaction, Session
from batchline.worker.pause import Pause

# Calls of one `gather` come one after the other: wait so many seconds for more.
_GATHERING = 0.005
_MAX_CALLS, _MAX_BYTES = 2_000, 8 * 2**20

_log = structlog.get_logger("batchline.client")


class CallFeeder:
    """`on_stored` gets each call whose line is known."""

    def __init__(
        self, sessions: Sessions, of: CallBatch, url: str, on_stored: Callable[[PendingCall], None]
    ) -> None:
        self._sessions = sessions
        self._of = of
        self._url = url
        self._on_stored = on_stored
        self._queue: deque[PendingCall] = deque()
        self._arrived = asyncio.Event()
        # The newest line of each name, and how many lines of the lane are known.
        self._known: dict[bytes, int] = {}
        self._read = 0

    def add(self, call: PendingCall) -> None:
        self._queue.append(call)
        self._arrived.set()

    async def run(self) -> None:
        pause = Pause()
        while True:
            await self._arrived.wait()
            await asyncio.sleep(_GATHERING)
            self._arrived.clear()
            while some := self._taken():
                try:
                    with translated():
                        await self._store(some)
                    pause.reset()
                except DatabaseUnavailable as error:
                    _log.warning("calls wait for the database", reason=str(error))
                    self._queue.extendleft(reversed(some))
                    await pause.wait()
                except BatchlineError as error:
                    for call in some:
                        call.fail(error)

    def fail_all(self, error: Exception) -> None:
        for call in self._queue:
            call.fail(error)

    def _taken(self) -> list[PendingCall]:
        some: list[PendingCall] = []
        size = 0
        while self._queue and len(some) < _MAX_CALLS and size < _MAX_BYTES:
            call = self._queue.popleft()
            # Its caller may have been cancelled.
            if not call.answer.done():
                some.append(call)
                size += len(call.body)
        return some

    async def _store(self, some: Sequence[PendingCall]) -> None:
        """Repeatable: after a lost answer it finds the lines that it has appended."""
        async with self._sessions.stream() as session:
            await self._learn(session, None)
            async with session.transaction() as connection:
                inside = InTransaction(connection)
                # Locks the batch's row until the transaction ends: two processes with the same name do not
                # append the same call twice.
                first = await self._append(inside, ())
                await self._learn(inside, first)
                new = [call for call in some if self._known.get(call.custom_id, 0) <= call.after]
                if new:
                    await self._append(inside, [(call.custom_id, call.body) for call in new])
        # Only now: before the commit they may be undone.
        for nth, call in enumerate(new):
            self._known[call.custom_id] = first + nth + 1
        self._read = first + len(new)
        added = set(map(id, new))
        for call in some:
            call.line_no = self._known[call.custom_id]
            call.inherited = id(call) not in added
            self._on_stored(call)

    async def _append(self, inside: Session, items: Sequence[tuple[bytes, bytes]]) -> int:
        first = await feeding.append(inside, self._of.batch.id, self._url, items)
        if first is None:
            raise BatchClosed("the batch accepts no more calls: it was finished, cancelled, or has expired")
        return first

    async def _learn(self, session: Session, until: int | None) -> None:
        """Read the names of lines that are not known, up to ordinal `until`. None: all there are.

        The batch has one lane, so the number of a line follows from its ordinal.
        """
        while until is None or self._read < until:
            found = await calls.lines(session, self._of.lane, self._read)
            for ordinal, custom_id in found:
                self._known[custom_id] = ordinal + 1
            if not found:
                return
            self._read = found[-1][0] + 1
