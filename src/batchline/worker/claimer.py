"""Keeps the buffer filled as long as there is hope of work."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

import structlog

from batchline.model import Claim, Deferred, Item, Verdict
from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope, WorkerId
from batchline.worker.lease import Lease
from batchline.worker.pause import Pause
from batchline.worker.reconciler import Reconciler

# One claim brings at most this many lines, so that reading them never holds up the loop for long.
_MAXIMUM = 2_000
# And the first claim of a new batch so many: enough to begin with.
_MAX_NEW = 64
# What is too large to be read just now comes back after this long: meanwhile others' lines are claimed.
_LEFT_OUT_DELAY = 1.0

_log = structlog.get_logger("batchline.claimer")


class Intake(Protocol):
    """Where claimed items go: a buffer, or what shares them out to several."""

    def __len__(self) -> int: ...

    async def needs_refill(self) -> None:
        """Wait until more is wanted."""
        ...

    def wanted(self) -> int: ...

    def mark_full(self) -> None:
        """Nothing more is wanted just now."""
        ...

    def room_for(self, count: int) -> int | None:
        """The bytes that so many items may bring. None: any."""
        ...

    def put(self, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        """Take items in. `left_out` came without their bodies, because there was no room for them."""
        ...


class Claimer:
    """`scope` is looked up for each claim: it may change while there are others that claim."""

    def __init__(
        self,
        session: Session,
        lease: Lease,
        scope: Callable[[], Scope],
        intake: Intake,
        claim_lock: asyncio.Lock,
        reconciler: Reconciler,
        settle: Callable[[Verdict], None],
        on_nothing: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self._lease = lease
        self._scope = scope
        self._intake = intake
        # The producers of one worker claim one after another: a span that one has claimed and not yet put
        # into its buffer would look lost to another.
        self._claim_lock = claim_lock
        self._reconciler = reconciler
        self._settle = settle
        self._on_nothing = on_nothing
        self._claiming = False
        self._announced: UUID | None = None
        # Set when there may be something to claim: at the start, when told so, when a poll saw it.
        self.work_available = asyncio.Event()
        self.work_available.set()
        self.found = asyncio.Event()
        self.claimed = 0

    @property
    def busy(self) -> bool:
        """Something may be claimable, or is being claimed."""
        return self._claiming or self.work_available.is_set()

    def announce(self, batch_id: UUID | None) -> None:
        """There is new work: in this batch, if it is known. An idle worker has a quick look at it."""
        if batch_id is not None and self._scope().batch_id not in (None, batch_id):
            return
        if not self.busy and not len(self._intake):
            self._announced = batch_id
        self.work_available.set()

    async def run(self) -> None:
        pause = Pause()
        while True:
            await self.work_available.wait()
            await self._intake.needs_refill()
            # Cleared before the claim, not after it: word of new work that comes meanwhile must not be lost.
            self.work_available.clear()
            self._claiming = True
            try:
                async with self._claim_lock:
                    found = await self._claim()
                if found:
                    self.work_available.set()
                elif not self.work_available.is_set():
                    self._on_nothing()
                pause.reset()
            except StoreUnavailable as error:
                self.work_available.set()
                self._reconciler.reconcile()
                _log.warning("cannot claim", reason=str(error))
                await pause.wait()
            finally:
                self._claiming = False

    async def _claim(self) -> bool:
        """Fill the buffer; False when nothing was there."""
        want = self._intake.wanted()
        if not want:
            self._intake.mark_full()
            return True
        if self._lease.lost:
            # A claim under the old name would renew it.
            self._lease.abandon()
        requested_at = self._lease.now()
        worker = self._lease.worker
        announced, self._announced = self._announced, None
        claims, items = await self._ask(worker, want, announced)
        if not claims:
            # It may be another producer's. Each of them looks at it before one looks at everything.
            return announced is not None
        if self._lease.worker is not worker:
            # The lease was lost while this was asked: what came is the old name's, and is left alone.
            return True
        self._lease.renewed(requested_at, claims[0].lease_left)
        if items is None:
            room = self._intake.room_for(sum(claim.size for claim in claims))
            items = await spans.fetch(self._session, worker.id, claims, room)
            if self._lease.worker is not worker:
                return True
            # Nothing seemed to be held meanwhile, and a heartbeat may have laid the lease to rest.
            self._lease.renewed(requested_at, claims[0].lease_left)
        missing = sum(claim.size for claim in claims) - len(items)
        if missing:
            _log.error("claimed lines could not be read", missing=missing)
        self._put(items)
        # The requests go out before anything else is asked.
        await asyncio.sleep(0)
        return True

    def _put(self, items: list[Item]) -> None:
        """Items whose bodies were too large to be read are given back; the next claim is smaller."""
        left_out = [item for item in items if item.left_out]
        if left_out:
            items = [item for item in items if not item.left_out]
            for item in left_out:
                self._settle(Deferred(item, _LEFT_OUT_DELAY))
        self.claimed += len(items)
        self._intake.put(items, left_out)
        self.found.set()

    async def _ask(
        self, worker: WorkerId, want: int, announced: UUID | None
    ) -> tuple[list[Claim], list[Item] | None]:
        """Claims, and their items where these have come along."""
        if announced is not None:
            return await spans.claim_new(self._session, worker, self._scope(), announced, min(want, _MAX_NEW))
        return await spans.claim(self._session, worker, self._scope(), min(want, _MAXIMUM)), None
