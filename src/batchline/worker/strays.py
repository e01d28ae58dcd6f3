"""Spans that this worker holds in the database without knowing it, and how they are found again.

A claim may have been carried out though its answer never came; a batch's creator may have claimed for this
worker in a notification that it never heard. The heartbeat would keep such spans alive for ever. So, once
track was lost, all that is not known here is freed.
"""

import asyncio
from collections.abc import Callable

import structlog

from batchline.store import batches, spans
from batchline.store.session import Session, StoreUnavailable
from batchline.worker.lease import Lease
from batchline.worker.pause import Pause

_log = structlog.get_logger("batchline.strays")


class Strays:
    """`known_spans` are those of all items that are somewhere in this worker. `turn` keeps claims away: what
    one has claimed and not yet put into its buffer would look like a stray."""

    def __init__(
        self,
        session: Session,
        lease: Lease,
        known_spans: Callable[[], set[int]],
        turn: asyncio.Lock,
        on_freed: Callable[[], None],
    ) -> None:
        self._session = session
        self._lease = lease
        self._known_spans = known_spans
        self._turn = turn
        self._on_freed = on_freed
        self._lost_track = asyncio.Event()
        self._again = False
        self._suspicious = False
        self._freed: set[int] = set()

    @property
    def busy(self) -> bool:
        return self._lost_track.is_set()

    @property
    def known(self) -> int:
        return len(self._known_spans())

    def lost_track(self) -> None:
        """Something may be held that is not known here."""
        self._again = True
        self._lost_track.set()

    def compare(self, held: int, known_before: int) -> None:
        """What the database says that is held, and what was known before it was asked. More than is known,
        and the same the next time: nobody told of it, or nobody heard."""
        more = held > max(known_before, self.known)
        if more and self._suspicious:
            self.lost_track()
        self._suspicious = more

    def may_take(self, span_id: int) -> bool:
        """Whether a span that the worker was told of is still its own.

        Not one that was freed before the word of it came. Nor any while strays are to be freed: it may be one
        of them already, or too new to be, and is then freed with the next ones.
        """
        if span_id in self._freed:
            self._freed.remove(span_id)
            return False
        if self.busy:
            self._again = True
            return False
        return True

    async def run(self) -> None:
        pause = Pause()
        while True:
            await self._lost_track.wait()
            try:
                async with self._turn:
                    await self.release()
                pause.reset()
            except StoreUnavailable as error:
                _log.warning("cannot look for lost claims", reason=str(error))
                # They may be free all the same.
                self._on_freed()
                await pause.wait()

    async def release(self) -> None:
        """Free them. They are noted first: the answer to this may get lost too."""
        self._again = False
        worker_id = self._lease.worker.id
        found = await spans.strays(self._session, worker_id, self._known_spans())
        self._freed |= found
        if found:
            for batch_id in await spans.release(self._session, worker_id, found):
                await batches.conclude(self._session, batch_id)
            self._on_freed()
        if not self._again:
            self._lost_track.clear()
