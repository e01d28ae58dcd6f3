"""Stores verdicts.

One settle is in flight at a time, and verdicts accumulate meanwhile: slower commits make larger settles, not
more of them. A settle is bounded by count and by bytes. A verdict stays here until its settle has succeeded;
sent twice, it counts once. A verdict that the database refuses is found by bisection, and only its item
fails.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Protocol

import structlog
from msgspec.structs import replace

from batchline.batches.output import failed_line
from batchline.config.settings import WorkerSettings
from batchline.model import (
    Completed,
    Deferred,
    Failed,
    Item,
    Retried,
    Settled,
    SubmissionUnknown,
    TaskParked,
    Verdict,
)
from batchline.model.failure import displayed_code, error_of_line
from batchline.secrets.tracebacks import traceback_of
from batchline.store import batches, health, spans, steps
from batchline.store.session import Session, StatementRefused, StoreUnavailable
from batchline.upstreams.faults import MAX_MESSAGE
from batchline.upstreams.memory import BodyMemory
from batchline.worker.lease import Lease
from batchline.worker.observer import WorkerObserver
from batchline.worker.pause import Pause
from batchline.worker.service import Service

_POSTPONED = (Retried, Deferred)
_WAITING = (TaskParked, SubmissionUnknown)
_ANSWERED = (Completed, Failed, Retried)
# The database's poll finds tasks that are due later than this: a worker that drains does not wait for them.
_SOON = 60.0
# A large verdict that failed so often, alone, while the database answers otherwise, is refused. A small one
# is not: then the database was unreachable.
_TRIES_ALONE = 5
# An item on which no verdict can be stored comes back after this long.
_REFUSED_DELAY = 30.0

# A longer request is not kept with its verdict: it is not needed any more.
_MAX_KEPT = 1024

_log = structlog.get_logger("batchline.settler")


class OnSettled(Protocol):
    def __call__(self, settled: Sequence[Settled], earliest_retry: float | None) -> None: ...


class OnStored(Protocol):
    """Called with verdicts that are stored, and those of them that came too late to count. `repeated` came
    too late as well, but an earlier settle of them had no answer: it may have stored them."""

    def __call__(
        self, verdicts: Sequence[Verdict], late: Sequence[Verdict], repeated: Sequence[Verdict], /
    ) -> None: ...


class Settler(Service):
    """Idle while it holds no verdict. `wake` makes it settle what it has: no more verdicts are coming."""

    name = "settler"

    def __init__(
        self,
        session: Session,
        lease: Lease,
        settings: WorkerSettings,
        memory: BodyMemory,
        on_settled: OnSettled,
    ) -> None:
        super().__init__()
        self._session = session
        self._lease = lease
        self._settings = settings
        self._memory = memory
        self._on_settled = on_settled
        self._verdicts: list[Verdict] = []
        # Bytes of those that wait.
        self._size = 0
        self._some = asyncio.Event()
        self._under_way: Sequence[Verdict] = ()
        self._stopping = False
        # Verdicts that were stored, for reports.
        self.completed = 0
        self.failed = 0
        self.on_stored: OnStored = lambda verdicts, late, repeated: None
        self.observer = WorkerObserver()
        # The lines whose verdicts were sent and may be stored, though no answer said so.
        self._unanswered: set[tuple[int, int]] = set()
        # Why the last settle failed, for people; None once one has succeeded.
        self.trouble: str | None = None
        # Since when a settle is under way, by the event loop's clock, or when the last part of it was stored.
        self.settling_since: float | None = None

    @property
    def unsettled(self) -> int:
        return len(self._verdicts) + len(self._under_way)

    def spans(self) -> set[int]:
        return {verdict.item.claim.span_id for verdict in (*self._verdicts, *self._under_way)}

    def add(self, verdict: Verdict) -> None:
        if isinstance(verdict, Deferred) and (task_id := verdict.item.claim.task_id) is not None:
            # The provider's task goes on. Without its id, the item would be sent a second time.
            verdict = TaskParked(verdict.item, task_id, verdict.delay, polled=False)
        if len(verdict.item.body) > _MAX_KEPT:
            verdict = replace(verdict, item=replace(verdict.item, body=b""))
        size = _size(verdict)
        self._memory.hold(size)
        self._size += size
        self._verdicts.append(verdict)
        count = len(self._verdicts)
        if count == 1:
            self.idle.clear()
            self._some.set()
        if count == self._settings.settle_max or self._size >= self._settings.settle_max_bytes:
            self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """No more verdicts are coming at all: settle those that are here, then end."""
        self._stopping = True
        self._some.set()
        self._woken.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            if not self._verdicts:
                if self._stopping:
                    return
                self._some.clear()
                continue
            await self._gather()
            await self._settle_some()

    async def _gather(self) -> None:
        """Wait a little for more verdicts, unless there are enough."""
        enough = (
            len(self._verdicts) >= self._settings.settle_max or self._size >= self._settings.settle_max_bytes
        )
        if enough or self._stopping:
            return
        try:
            async with asyncio.timeout(self._settings.settle_after):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _settle_some(self) -> None:
        # Twice the usual size when a slow commit has let them pile up; beyond that latency suffers.
        taken = self._first(self._verdicts, 2 * self._settings.settle_max)
        del self._verdicts[: len(taken)]
        self._size -= _total(taken)
        self._woken.clear()
        self._under_way = taken
        try:
            await self._settle_all(taken)
        finally:
            self._under_way = ()
            self._size += _total(taken)
            self._verdicts[:0] = taken
            if not self._verdicts:
                self.idle.set()

    async def _settle_all(self, taken: list[Verdict]) -> None:
        """Settle them, and remove from the list what is settled. While the database does not answer, settle
        fewer at a time: one of them may be the cause."""
        pause, count, failures, reason = Pause(), len(taken), 0, ""
        clock = asyncio.get_running_loop().time
        self.settling_since = clock()
        while taken:
            some = taken[:count]
            try:
                if failures >= _TRIES_ALONE and await self._is_cause(some):
                    await self._refuse(some[0], reason)
                else:
                    await self._settle(some)
            except StoreUnavailable as error:
                reason = self.trouble = str(error)
                _log.warning("cannot settle yet", verdicts=len(some), reason=reason)
                self._unanswered.update(map(_line, some))
                count = max(1, len(some) // 2)
                failures += len(some) == 1
                await pause.wait()
            else:
                del taken[: len(some)]
                for verdict in some:
                    self._memory.free(_size(verdict))
                count, failures = 2 * count, 0
                self.trouble = None
                self.settling_since = clock()
        self.settling_since = None
        self._unanswered.clear()

    def _first(self, verdicts: Sequence[Verdict], maximum: int) -> list[Verdict]:
        """As many as make one settle: at least one."""
        size, taken = 0, list[Verdict]()
        for verdict in verdicts[:maximum]:
            size += _size(verdict)
            if taken and size > self._settings.settle_max_bytes:
                break
            taken.append(verdict)
        return taken

    async def _settle(self, verdicts: Sequence[Verdict]) -> None:
        """If the database refuses a value in one of them, find it by bisection, and fail only that item."""
        try:
            await self._send(verdicts)
        except StatementRefused as error:
            if len(verdicts) == 1:
                await self._refuse(verdicts[0], str(error))
                return
            middle = len(verdicts) // 2
            await self._settle(verdicts[:middle])
            await self._settle(verdicts[middle:])

    async def _send(self, verdicts: Sequence[Verdict]) -> None:
        late: list[Verdict] = []
        started = monotonic()
        settled = await spans.settle(self._session, self._lease.worker.id, verdicts, late.extend)
        self.observer.settle_ended(monotonic() - started, verdicts)
        repeated = [verdict for verdict in late if _line(verdict) in self._unanswered]
        if repeated:
            late = [verdict for verdict in late if _line(verdict) not in self._unanswered]
        self.on_stored(verdicts, late, repeated)
        if _log.is_enabled_for(logging.INFO):
            _log_failures(verdicts)
        delays = [
            verdict.delay
            for verdict in verdicts
            if isinstance(verdict, _POSTPONED) or (isinstance(verdict, _WAITING) and verdict.delay < _SOON)
        ]
        self._on_settled(settled, min(delays, default=None))
        self.completed += sum(isinstance(verdict, Completed) for verdict in verdicts)
        self.failed += sum(isinstance(verdict, Failed) for verdict in verdicts)
        for row in settled:
            if row.closing and not row.finished:
                await batches.conclude(self._session, row.batch_id)
            if row.step_ended:
                await steps.begin_part(self._session, row.batch_id)

    async def _is_cause(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether the database answers, and this one large verdict is what it does not take."""
        if len(verdicts) > 1 or _size(verdicts[0]) <= self._settings.settle_max_bytes:
            return False
        await health.ping(self._session)
        return True

    async def _refuse(self, verdict: Verdict, reason: str) -> None:
        item = verdict.item
        # Not the reason: it may quote the result. The line's error has it.
        _log.error("the database refused a result; its line fails", **item.log_fields())
        line = failed_line(item, "result_refused", f"the result could not be stored: {reason}"[:MAX_MESSAGE])
        try:
            await self._send([Failed(item, line)])
        except StatementRefused as error:
            # Then the result is not the cause. Give the item back: a busy worker would keep it for ever.
            _log.error("an item cannot be settled", **item.log_fields(), exception=traceback_of(error))
            await self._give_back(item)

    async def _give_back(self, item: Item) -> None:
        task_id = item.claim.task_id
        # The provider's task goes on. Without its id, the item would be submitted a second time.
        back: Verdict = (
            Deferred(item, _REFUSED_DELAY)
            if task_id is None
            else TaskParked(item, task_id, _REFUSED_DELAY, polled=False)
        )
        try:
            await self._send([back])
        except StatementRefused as error:
            _log.error("an item cannot be given back", **item.log_fields(), exception=traceback_of(error))


def _log_failures(verdicts: Sequence[Verdict]) -> None:
    """Codes, not messages: these may quote a prompt."""
    for verdict in verdicts:
        match verdict:
            case Failed():
                code = error_of_line(verdict.output, verdict.status_code)[0]
                _log.info("line failed", **verdict.item.log_fields(), code=displayed_code(code))
            case Retried():
                code = displayed_code(verdict.error_code)
                _log.info(
                    "attempt failed", **verdict.item.log_fields(), code=code, again_in=round(verdict.delay, 1)
                )


def _line(verdict: Verdict) -> tuple[int, int]:
    return verdict.item.claim.span_id, verdict.item.ordinal


def _size(verdict: Verdict) -> int:
    """The bytes that are kept for it: the output, what it emits, and the request with the item."""
    kept = len(verdict.item.body)
    if isinstance(verdict, Completed) and verdict.emitted:
        kept += sum(len(each.body) for each in verdict.emitted)
    return kept + len(verdict.output) if isinstance(verdict, _ANSWERED) else kept


def _total(verdicts: Iterable[Verdict]) -> int:
    return sum(map(_size, verdicts))
