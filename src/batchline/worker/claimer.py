"""Keeps a buffer filled while work may be available: at the start, when woken, and after each claim that
found some.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol
from uuid import UUID

import structlog

from batchline.model import Claim, Deferred, Item
from batchline.store import spans
from batchline.store.session import StoreUnavailable
from batchline.store.spans import Scope, WorkerId
from batchline.worker.context import ProducerContext
from batchline.worker.pause import Pause
from batchline.worker.prompt_order import in_prompt_order
from batchline.worker.service import Service

# One claim returns at most this many lines, so that reading them never blocks the event loop for long.
_MAXIMUM = 2_000
# The first claim of a new batch returns at most this many: enough to begin with.
_MAX_NEW = 64
# Lines that are too large to be read now come back after this long: meanwhile other lines are claimed.
_LEFT_OUT_DELAY = 1.0

_log = structlog.get_logger("batchline.claimer")


class Intake(Protocol):
    """Where claimed items go: a buffer, or something that distributes them to several buffers."""

    def __len__(self) -> int: ...

    async def needs_refill(self) -> None:
        """Wait until more is wanted."""
        ...

    def wanted(self) -> int: ...

    def mark_full(self) -> None:
        """Ask for no more items now."""
        ...

    def room_for(self, count: int) -> int | None:
        """The bytes that so many items may have. None: any."""
        ...

    def put(self, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        """Take items in. `left_out` came without their bodies, because there was no room for them."""
        ...


class Claimer(Service):
    """`scope` is called for each claim: it changes with the number of producers. `on_nothing` is called when
    a claim found nothing. `max_tasks`: the scope is a provider, which may have so many tasks."""

    name = "claimer"

    def __init__(
        self,
        context: ProducerContext,
        scope: Callable[[], Scope],
        intake: Intake,
        on_nothing: Callable[[], None] = lambda: None,
        max_tasks: int | None = None,
    ) -> None:
        super().__init__()
        self._context = context
        self._lease = context.lease
        self._scope = scope
        self._intake = intake
        self._on_nothing = on_nothing
        self._max_tasks = max_tasks
        # All that this claimer was woken for, if it is known.
        self._announced: UUID | None = None
        self.claimed = 0
        # A claim was cancelled or failed. It may have taken spans that this worker does not know.
        self.interrupted = False
        self._stopping = False
        # Nothing is claimed, whatever there is: its upstream is unavailable, or others take the lines.
        self.paused = False
        self.wake()

    def pause(self) -> None:
        """Claim nothing until `resume`. A claim that is under way ends."""
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.wake()

    def announce(self, batch_id: UUID | None) -> None:
        """There is new work: in this batch, if it is known. An idle worker claims from it directly."""
        if batch_id is not None and self._scope().batch_id not in (None, batch_id):
            return
        # It may be the same batch again, resumed.
        self._context.announced.taken = None
        waits = self.idle.is_set() and not len(self._intake) and self._max_tasks is None
        self.wake()
        if waits:
            self._announced = batch_id

    def wake(self) -> None:
        # There is more to look for than an announced batch.
        self._announced = None
        # A claim that ends while the worker stops must not keep it waiting. Nor does one that is paused.
        if not self._stopping and not self.paused:
            super().wake()

    def stop(self) -> None:
        # A worker that leaves releases what an interrupted claim has taken.
        self._stopping = True
        self.idle.set()

    def repair(self) -> None:
        self._context.reconciler.wake()
        self._look_again()

    def _look_again(self) -> None:
        """After a claim that failed. Also if it is paused by now: then it becomes idle."""
        self._announced = None
        if not self._stopping:
            super().wake()

    async def run(self) -> None:
        pause = Pause()
        while True:
            await self._woken.wait()
            await self._intake.needs_refill()
            # Cleared before the claim, not after it: a wake-up that comes meanwhile must not be lost.
            self._woken.clear()
            try:
                found = not self.paused and await self._claim_alone()
                if found and not self.paused:
                    self.wake()
                elif not self._woken.is_set():
                    self.idle.set()
                    self._on_nothing()
                pause.reset()
            except StoreUnavailable as error:
                self._look_again()
                self._context.reconciler.wake()
                _log.warning("cannot claim", reason=str(error))
                await pause.wait()

    async def _claim_alone(self) -> bool:
        """Claim while no other claimer of this worker does."""
        async with self._context.reconciler.claim_lock:
            try:
                return await self._claim()
            except BaseException:
                self.interrupted = True
                raise

    async def _claim(self) -> bool:
        """Fill the buffer; False if there is nothing more to claim, as far as is known."""
        if self._announced is not None and self._announced == self._context.announced.taken:
            self._announced = None
            return False
        want = self._intake.wanted()
        if not want:
            self._intake.mark_full()
            return True
        want = min(self._context.budget.allowed(want), _MAXIMUM)
        if not want:
            return False
        if self._lease.lost:
            # A claim under the old name would renew it.
            self._lease.abandon()
        began = monotonic()
        requested_at = self._lease.now()
        worker = self._lease.worker
        announced, self._announced = self._announced, None
        claims, items = await self._send_claim(worker, want, announced)
        self._count(claims, want)
        if not claims:
            # It may be another producer's. Each of them looks at it before any of them looks at everything.
            return announced is not None
        whole = False
        if announced is not None and len(claims[0].settings.stages) == 1:
            self._context.announced.taken = announced
            whole = _has_all(claims[0], min(want, _MAX_NEW))
        if self._lease.worker is not worker:
            # The lease was lost during the claim: the items belong to the old name, and are left to others.
            return True
        self._lease.renewed(requested_at, claims[0].lease_left)
        if items is None:
            room = self._intake.room_for(sum(claim.size for claim in claims))
            items = await spans.fetch(self._context.session, worker.id, claims, room)
            if self._lease.worker is not worker:
                return True
            # Nothing seemed to be held meanwhile, so a heartbeat may have released the lease.
            self._lease.renewed(requested_at, claims[0].lease_left)
        missing = sum(claim.size for claim in claims) - len(items)
        if missing:
            _log.error("claimed lines could not be read", missing=missing)
        self._put(in_prompt_order(items), began)
        # The requests go out before the next claim. Of a batch that had begun before, lines may have been
        # given back, which this claim did not look at.
        await asyncio.sleep(0)
        return not (whole and items and items[0].ordinal == 0)

    def _put(self, items: list[Item], began: float) -> None:
        """Give back items whose bodies were too large to be read; the next claim is smaller. `began`: when
        they were claimed."""
        left_out = [item for item in items if item.left_out]
        if left_out:
            items = [item for item in items if not item.left_out]
            for item in left_out:
                self._context.settler.add(Deferred(item, _LEFT_OUT_DELAY))
        self.claimed += len(items)
        if self._context.tracer is not None:
            self._context.tracer.claimed(items, began)
        self._intake.put(items, left_out)

    def _count(self, claims: Sequence[Claim], wanted: int) -> None:
        if claims:
            _log.info(f"claimed {sum(claim.size for claim in claims)} of {wanted} wanted")
            if _log.is_enabled_for(logging.INFO):
                for claim in claims:
                    _log.info("claimed", **claim.log_fields())
            # A poll of an item's task does not run the item again.
            self._context.budget.take(sum(claim.size for claim in claims if claim.task_id is None))
            self._context.on_claimed()

    async def _send_claim(
        self, worker: WorkerId, want: int, announced: UUID | None
    ) -> tuple[list[Claim], list[Item] | None]:
        """Claims, and their items if these came with them."""
        session, scope, items = self._context.session, self._scope(), None
        started = monotonic()
        if announced is not None:
            claims, items = await spans.claim_new(session, worker, scope, announced, min(want, _MAX_NEW))
        else:
            claims = await spans.claim(session, worker, scope, want, self._max_tasks)
        self._context.observer.claim_ended(monotonic() - started, sum(claim.size for claim in claims))
        return claims, items


def _has_all(claim: Claim, limit: int) -> bool:
    """Whether a claim of at most `limit` fresh lines has left none in their lane."""
    return claim.size < min(limit, claim.concurrency or limit)
