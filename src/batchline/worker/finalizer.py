"""Finalizes batches, several at once, when woken.

A batch that fails is put off by its own back-off, which is kept in the database, and the next one is taken:
one batch never delays another. An object store that refuses several batches in a row is considered
unreachable; then one batch at a time is tried, less and less often.
"""

import asyncio
import random
from collections.abc import Callable
from time import monotonic
from uuid import UUID

import structlog

from batchline.batches.finalize import FinalizeMismatch, finalize, put_off, reason
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.model import Batch, ids
from batchline.store import batches
from batchline.store.session import Session, StatementRefused, StoreUnavailable
from batchline.store.spans import Scope, WorkerId
from batchline.upstreams.retry import Backoff
from batchline.worker.lease import Lease
from batchline.worker.service import Service
from batchline.worker.tasks import cancel_all

# How many batches are finalized at once. Each streams in flat memory, on its own session.
_AT_ONCE = 4
# The last free session is for batches of at most so many lines: however many large files are being written, a
# small batch ends soon.
_SMALL = 10_000
# A retry that comes due sooner than this is not left to a poll.
_SOON = 60.0
# A batch that cannot even be put off is left alone for this long.
_LEFT_ALONE = 10.0
# Errors that are logged in one line; any other is logged with its traceback.
_EXPECTED = (StoreUnavailable, StatementRefused, ObjectStoreUnavailable, FinalizeMismatch)

_log = structlog.get_logger("batchline.finalizer")


class Finalizer(Service):
    """Its sessions are opened when first needed; all but two are closed when there is nothing to do."""

    name = "finalizer"

    def __init__(
        self,
        url: str,
        lease: Lease,
        scope: Scope,
        objects: Objects,
        on_ended: Callable[[Batch], None],
    ) -> None:
        super().__init__()
        self._sessions = [Session(url, "finalize") for _ in range(_AT_ONCE)]
        self._lease = lease
        self._scope = scope
        self._objects = objects
        self._on_ended = on_ended
        # Called with each batch that has ended here, and the seconds that it took.
        self.on_finalized: Callable[[Batch, float], None] = lambda batch, seconds: None
        self._claiming = False
        self._stopping = False
        self._under_way: dict[Session, UUID] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Batches that are ours and wait, though the database does not know.
        self._left_alone: set[UUID] = set()
        self._last_tenant = ""
        self._outage = _Outage()
        # When batches that failed here come due again, and when the object store is tried again (None).
        self._timers: dict[UUID | None, asyncio.TimerHandle] = {}
        # Why the last try failed, for people; None once one has succeeded.
        self.trouble: str | None = None

    @property
    def holding(self) -> bool:
        """Whether it holds a batch, or may be about to: the lease must be renewed."""
        return self._claiming or bool(self._under_way) or self._woken.is_set()

    @property
    def waiting(self) -> bool:
        """Whether something that failed here will soon be tried again."""
        return bool(self._timers)

    def wake(self) -> None:
        # An unreachable object store is left alone for a while.
        if None not in self._timers:
            super().wake()

    def stop(self) -> None:
        """Do not wait for the next try of what failed."""
        self._stopping = True
        self._rest()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._end()

    @property
    def _busy(self) -> bool:
        return self._claiming or bool(self._under_way) or (self.waiting and not self._stopping)

    async def _work(self) -> None:
        self._claiming = True
        try:
            await self._start_all()
        except StoreUnavailable as error:
            # The next poll wakes it again.
            self.trouble = reason(error)
            _log.error("cannot look for batches to finalize", reason=self.trouble)
        finally:
            self._claiming = False

    async def _end(self) -> None:
        await cancel_all(list(self._tasks))
        while self._timers:
            self._timers.popitem()[1].cancel()
        for session in self._sessions:
            await session.close()

    async def _start_all(self) -> None:
        """Take batches until none is left to take, or no session is free."""
        while (session := self._free_session()) is not None:
            worker = self._lease.worker
            batch = await self._claim(session, worker)
            if batch is None:
                await self._close_idle()
                return
            self._last_tenant = batch.tenant
            self._under_way[session] = batch.id
            task = asyncio.create_task(self._finalize(session, worker, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _free_session(self) -> Session | None:
        alone = self._outage.suspected or self._scope.batch_id is not None
        if None in self._timers or (alone and self._under_way):
            return None
        return next((session for session in self._sessions if session not in self._under_way), None)

    async def _claim(self, session: Session, worker: WorkerId) -> Batch | None:
        last = len(self._under_way) == len(self._sessions) - 1
        return await batches.claim_finalizing(
            session,
            worker,
            self._scope.batch_id,
            under_way=(*self._under_way.values(), *self._left_alone),
            after_tenant=self._last_tenant,
            max_lines=_SMALL if last else None,
        )

    async def _close_idle(self) -> None:
        # One finalizes and one looks for more: opening these two each time would cost more than keeping them.
        for session in self._sessions[2:]:
            if session not in self._under_way:
                await session.close()

    async def _finalize(self, session: Session, worker: WorkerId, batch: Batch) -> None:
        try:
            began = monotonic()
            ended = await finalize(session, self._objects, worker, batch)
            if ended is not None:
                self.on_finalized(ended, monotonic() - began)
            self._succeeded(ended)
        except Exception as error:  # noqa: BLE001
            # Whatever is wrong with one batch must not affect the others.
            await self._failed(session, worker, batch, error)
        finally:
            del self._under_way[session]
            # There may be another one that found no session before.
            self.wake()
            self._rest()

    def _succeeded(self, ended: Batch | None) -> None:
        self._outage.over()
        self.trouble = None
        if ended is not None:
            _log.info(
                "batch ended",
                batch=ids.show(ids.BATCH, ended.id),
                status=ended.status.value,
                completed=ended.completed,
                failed=ended.failed,
            )
            self._on_ended(ended)

    async def _failed(self, session: Session, worker: WorkerId, batch: Batch, error: Exception) -> None:
        self.trouble = reason(error)
        if isinstance(error, ObjectStoreUnavailable) and (pause := self._outage.refused()):
            self._call_in(pause, None)
        try:
            delay = await put_off(session, worker, batch, error)
        except StoreUnavailable:
            # The batch is still ours. The next poll finds it.
            delay = None
        except Exception:  # noqa: BLE001
            # The batch is still ours, and would be taken again at once, for ever.
            _log.exception("cannot put off a batch", batch=ids.show(ids.BATCH, batch.id))
            self._left_alone.add(batch.id)
            delay = _LEFT_ALONE
        _log.error(
            "cannot finalize",
            batch=ids.show(ids.BATCH, batch.id),
            reason=self.trouble,
            again_in=delay and round(delay, 1),
            exc_info=None if isinstance(error, _EXPECTED) else error,
        )
        if delay is not None and delay < _SOON:
            self._call_in(delay, batch.id)

    def _call_in(self, seconds: float, what: UUID | None) -> None:
        def due() -> None:
            del self._timers[what]
            if what is not None:
                self._left_alone.discard(what)
            self.wake()

        if what in self._timers:
            self._timers[what].cancel()
        # A moment later than the database's clock says.
        self._timers[what] = asyncio.get_running_loop().call_later(seconds + 0.005, due)


class _Outage:
    """Distinguishes an unreachable object store from one that refuses a batch or two."""

    _SUSPICIOUS = 3
    _BACKOFF = Backoff(minimum=1.0, maximum=60.0)

    def __init__(self) -> None:
        self._refusals = 0

    @property
    def suspected(self) -> bool:
        return self._refusals >= self._SUSPICIOUS

    def refused(self) -> float:
        """Note one more refusal in a row; for how many seconds to leave the store alone."""
        self._refusals += 1
        if not self.suspected:
            return 0.0
        longest = self._BACKOFF.ceiling(self._refusals - self._SUSPICIOUS + 1)
        return random.uniform(longest / 2, longest)

    def over(self) -> None:
        self._refusals = 0
