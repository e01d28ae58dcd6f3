"""Verdicts on their way to the store.

One settle is under way at a time and gathers verdicts meanwhile, so slower commits make larger settles
and never more of them. A verdict stays here until its settle has succeeded; sent twice, it counts once.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from batchline.config import WorkerSettings
from batchline.engine.output import failed_line
from batchline.model import Deferred, Failed, Retry, Settled, Verdict
from batchline.store import batches, spans
from batchline.store.session import Session, StatementRefused, StoreUnavailable
from batchline.worker.lease import Lease
from batchline.worker.pause import Pause

_POSTPONED = (Retry, Deferred)

_log = structlog.get_logger("batchline.settler")


class OnSettled(Protocol):
    def __call__(self, settled: Sequence[Settled], earliest_retry: float | None) -> None: ...


class Settler:
    def __init__(
        self,
        session: Session,
        lease: Lease,
        settings: WorkerSettings,
        on_settled: OnSettled,
    ) -> None:
        self._session = session
        self._lease = lease
        self._settings = settings
        self._on_settled = on_settled
        self._verdicts: list[Verdict] = []
        self._some = asyncio.Event()
        self._many = asyncio.Event()
        self._under_way: Sequence[Verdict] = ()
        self._closed = False
        # Why the last try did not succeed, for people; None once one has.
        self.trouble: str | None = None

    @property
    def unsettled(self) -> int:
        return len(self._verdicts) + len(self._under_way)

    def spans(self) -> set[int]:
        return {verdict.item.claim.span_id for verdict in (*self._verdicts, *self._under_way)}

    def add(self, verdict: Verdict) -> None:
        self._verdicts.append(verdict)
        count = len(self._verdicts)
        if count == 1:
            self._some.set()
        elif count == self._settings.settle_most:
            self._many.set()

    def hurry(self) -> None:
        """Nothing else is under way that could keep these verdicts company."""
        self._many.set()

    def close(self) -> None:
        """No more verdicts will come: settle what is here, then end."""
        self._closed = True
        self._some.set()
        self._many.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            if not self._verdicts:
                if self._closed:
                    return
                self._some.clear()
                continue
            await self._gather()
            await self._settle_some()

    async def _gather(self) -> None:
        """Wait a little for company; not at all when there is enough of it."""
        if len(self._verdicts) >= self._settings.settle_most or self._closed:
            return
        try:
            async with asyncio.timeout(self._settings.settle_after):
                await self._many.wait()
        except TimeoutError:
            return

    async def _settle_some(self) -> None:
        # Twice the usual size when a slow commit has let them pile up; beyond that latency suffers.
        taken = self._verdicts[: 2 * self._settings.settle_most]
        del self._verdicts[: len(taken)]
        self._many.clear()
        self._under_way = taken
        pause = Pause()
        try:
            while taken:
                try:
                    await self._settle(taken)
                    taken = []
                    self.trouble = None
                except StoreUnavailable as error:
                    self.trouble = str(error)
                    _log.warning("cannot settle yet", verdicts=len(taken), reason=str(error))
                    await pause.wait()
        finally:
            self._under_way = ()
            self._verdicts[:0] = taken

    async def _settle(self, verdicts: Sequence[Verdict]) -> None:
        try:
            settled = await spans.settle(self._session, self._lease.worker.id, verdicts)
        except StatementRefused as error:
            await self._settle_apart(verdicts, error)
            return
        delays = [verdict.delay for verdict in verdicts if isinstance(verdict, _POSTPONED)]
        self._on_settled(settled, min(delays, default=None))
        for row in settled:
            if row.closing and not row.finished:
                await batches.conclude(self._session, row.batch_id)

    async def _settle_apart(self, verdicts: Sequence[Verdict], error: StatementRefused) -> None:
        """The database refused a value in one of them: find it by halves, and fail that item alone."""
        if len(verdicts) > 1:
            middle = len(verdicts) // 2
            await self._settle(verdicts[:middle])
            await self._settle(verdicts[middle:])
            return
        item = verdicts[0].item
        _log.error("the database refused a result", request=item.request_id, reason=str(error))
        line = failed_line(item, "result_refused", f"the result could not be stored: {error}")
        await self._settle([Failed(item, line)])
