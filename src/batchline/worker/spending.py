"""Keeps batches within their caps: reserves what a request may cost before it is sent.

`CappedExecutor` stands before the worker's executor. An item of a batch with a cap waits until
`SpendingKeeper` has reserved its largest cost in the database (`store/functions/reserve_budget_v1.sql`); one
statement reserves for all items that wait. When its answer is there, the reservation shrinks to what the
upstream reports, and ends when the verdict is stored: the batch's counters have it then. A request that was
sent and has no answer that says what it cost stays reserved for good, here and after a crash: it may have
been charged.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, TypeAlias
from uuid import UUID

import structlog

from batchline.executors.executor import Executor, Fence, no_fence
from batchline.model import (
    NO_USAGE,
    Completed,
    Deferred,
    Failed,
    Item,
    Ran,
    Retried,
    Spending,
    Usage,
    Verdict,
    ids,
)
from batchline.model.ids import new_id
from batchline.model.spending import largest_usage
from batchline.store import budgets
from batchline.store.budgets import Amount, Holder
from batchline.store.session import Session, StatementRefused, StoreUnavailable
from batchline.worker.lease import Lease
from batchline.worker.pause import Pause
from batchline.worker.service import Service

# Of one statement.
_MAX_WANTED = 1_000
# Requests of other workers may make room at any time, and these may wait for what is not needed here.
_LOOK_AGAIN = 1.0
# Between two statements, so that each is for many items.
_GATHER = 0.01
# An item for which nothing can be reserved comes back after this long.
_REFUSED_DELAY = 30.0
_NOTHING = Amount()

_log = structlog.get_logger("batchline.spending")


# The item may be sent; the batch may send nothing; the database does not accept the reservation.
Grant: TypeAlias = Literal["granted", "closed", "refused"]


class _Request:
    """An item that waits for its reservation."""

    def __init__(self, amount: Amount) -> None:
        self.amount = amount
        self.answer: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True)
class _PaidAnswer:
    """What a request has cost, and the name under which its item was held."""

    cost: Amount
    sender: object


@dataclass(slots=True)
class _Account:
    """What this worker holds of the caps of one batch."""

    batch_id: UUID
    waiting: deque[_Request] = field(default_factory=deque)
    requests: int = 0
    in_flight: Amount = _NOTHING
    # Answers whose verdicts are not stored yet, by span and ordinal.
    unsettled: dict[tuple[int, int], list[_PaidAnswer]] = field(default_factory=dict)
    settling: Amount = _NOTHING
    unconfirmed: Amount = _NOTHING
    # What is held and whether some of it will be free again, as the database has it, and since when, by the
    # event loop's clock. Other workers wait while it is to be free: so a change of either must be recorded.
    recorded: tuple[Amount, bool] = (_NOTHING, False)
    recorded_at: float = 0.0

    @property
    def held(self) -> Amount:
        return self.in_flight + self.settling + self.unconfirmed

    @property
    def busy(self) -> bool:
        """Some of what is held will be free again."""
        return bool(self.requests or self.unsettled)

    @property
    def due(self) -> bool:
        return bool(self.waiting) or self.recorded != (self.held, self.busy)

    def granted(self, request: _Request) -> None:
        if not request.answer.done():
            self.requests += 1
            self.in_flight += request.amount
            request.answer.set_result("granted")

    def ended(self, item: Item, reserved: Amount, actual: Amount | None, sender: object = None) -> None:
        """A request has ended. `actual`: None, nobody knows what it has cost."""
        self.requests -= 1
        self.in_flight -= reserved
        if actual is None:
            self.unconfirmed += reserved
        elif actual != _NOTHING:
            self.unsettled.setdefault(_key(item), []).append(_PaidAnswer(actual, sender))
            self.settling += actual

    def stored(self, item: Item) -> _PaidAnswer | None:
        """The verdict on the item is stored; the answer that it was made of."""
        answers = self.unsettled.get(_key(item))
        if not answers:
            return None
        answer = answers.pop()
        if not answers:
            del self.unsettled[_key(item)]
        self.settling -= answer.cost
        return answer


class SpendingKeeper(Service):
    """Reserves for items that wait, and gives back what is not needed. Idle while both are done."""

    name = "spending"

    def __init__(self, session: Session, lease: Lease) -> None:
        super().__init__()
        self._session = session
        self._lease = lease
        # The same under all names that the lease gives this worker: requests in flight outlast a name.
        self._id = new_id()
        self._accounts: dict[UUID, _Account] = {}

    async def grant(self, item: Item, amount: Amount) -> Grant:
        """Wait until the request may be sent, or must not be sent."""
        account = self._accounts.setdefault(item.claim.batch_id, _Account(item.claim.batch_id))
        request = _Request(amount)
        account.waiting.append(request)
        self.wake()
        try:
            return await request.answer
        except asyncio.CancelledError:
            if not request.answer.cancelled() and request.answer.result() == "granted":
                # It was granted before it could wake up. It is not sent.
                self.ended(item, amount, _NOTHING)
            raise

    def refuse_waiting(self) -> None:
        """The worker stops: what waits is not sent."""
        for account in self._accounts.values():
            _refuse(account, "closed")

    def ended(self, item: Item, reserved: Amount, actual: Amount | None, sender: object = None) -> None:
        self._accounts[item.claim.batch_id].ended(item, reserved, actual, sender)
        self.wake()

    def stored(
        self, verdicts: Sequence[Verdict], late: Sequence[Verdict], repeated: Sequence[Verdict] = ()
    ) -> None:
        """These verdicts are in the database, except for the late ones: others had given theirs before.

        `repeated`: late, but an earlier settle of them had no answer, so that it may have stored them. It
        has, if this worker still has the lease under which it held their items: nobody else could.
        """
        if not self._accounts:
            return
        too_late, again = {id(verdict) for verdict in late}, {id(verdict) for verdict in repeated}
        sender = self._lease.sender()
        for verdict in verdicts:
            account = self._accounts.get(verdict.item.claim.batch_id)
            answer = None if account is None else account.stored(verdict.item)
            if account is None or answer is None:
                continue
            of_others = id(verdict) in too_late
            if id(verdict) in again:
                of_others = sender is None or answer.sender != sender
            if of_others or not _reports_usage(verdict):
                account.unconfirmed += answer.cost
        self.wake()

    def stop(self) -> None:
        self.wake()

    def repair(self) -> None:
        self.wake()

    async def run(self) -> None:
        pause = Pause()
        while True:
            await self._until_due()
            self._woken.clear()
            try:
                for account in list(self._accounts.values()):
                    await self._serve_or_refuse(account)
                pause.reset()
                await asyncio.sleep(_GATHER)
            except StoreUnavailable as error:
                _log.warning("cannot reserve", reason=str(error))
                self.wake()
                await pause.wait()
            if not self._woken.is_set() and not any(each.due for each in self._accounts.values()):
                self.idle.set()

    async def _until_due(self) -> None:
        """Until something has changed here, or may have changed at other workers."""
        due = any(account.due for account in self._accounts.values())
        try:
            async with asyncio.timeout(_LOOK_AGAIN if due else None):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _serve_or_refuse(self, account: _Account) -> None:
        """Reserve for the items of one batch. If the database refuses a value, only this batch waits."""
        try:
            await self._serve(account)
        except StatementRefused as error:
            _log.error(
                "cannot reserve for a batch", batch=ids.show(ids.BATCH, account.batch_id), reason=str(error)
            )
            _refuse(account, "refused")
            account.recorded = account.held, account.busy

    async def _serve(self, account: _Account) -> None:
        clock = asyncio.get_running_loop().time
        while account.due:
            if not account.waiting and account.busy and clock() < account.recorded_at + _LOOK_AGAIN:
                break
            wanted = [request for request in account.waiting if not request.answer.done()][:_MAX_WANTED]
            holder = Holder(self._id, self._lease.worker.id)
            held, busy = account.held, account.busy
            reservation = await budgets.reserve(
                self._session,
                account.batch_id,
                holder,
                held,
                [each.amount for each in wanted],
                in_flight=busy,
            )
            for request in wanted[: reservation.granted]:
                held += request.amount
                account.granted(request)
            account.recorded, account.recorded_at = (held, busy or reservation.granted > 0), clock()
            if reservation.state != "open":
                _refuse(account, "closed")
            if reservation.state == "paused":
                _log.info(
                    "the batch is paused: its cap is reached", batch=ids.show(ids.BATCH, account.batch_id)
                )
            account.waiting = deque(each for each in account.waiting if not each.answer.done())
            if reservation.granted < len(wanted) or not account.waiting:
                break
        if not account.busy and not account.due and account.held == _NOTHING:
            del self._accounts[account.batch_id]


class CappedExecutor:
    """Passes items on, those of batches with a cap after their reservation."""

    def __init__(self, executor: Executor, keeper: SpendingKeeper) -> None:
        self._executor = executor
        self._keeper = keeper
        self._fence: Fence = no_fence
        self._stopping = False

    def run(self, item: Item) -> Coroutine[Any, Any, Ran]:
        # Not a coroutine itself: each item would pay for one more.
        spending = item.claim.settings.spending
        if spending is None or not spending.capped:
            return self._executor.run(item)
        return self._reserved(item, spending)

    def fenced_by(self, fence: Fence) -> None:
        self._fence = fence
        self._executor.fenced_by(fence)

    def wind_down(self) -> None:
        self._stopping = True
        self._keeper.refuse_waiting()
        self._executor.wind_down()

    async def close(self) -> None:
        await self._executor.close()

    async def _reserved(self, item: Item, spending: Spending) -> Ran:
        reserved = _amount(item, spending, largest_usage(spending, item.claim.url, item.body))
        name = self._fence()
        grant = "closed" if self._stopping else await self._keeper.grant(item, reserved)
        if grant != "granted":
            return Deferred(item, _REFUSED_DELAY if grant == "refused" else 0.0)
        # What it has waited for its reservation is not the upstream's time.
        item.stamps.sent = monotonic()
        actual: Amount | None = None
        try:
            if self._stopping or self._fence() != name:
                # It was never sent. If the name has changed, another worker may be running it.
                ran: Ran = Deferred(item)
            else:
                ran = await self._executor.run(item)
            actual = _actual(item, spending, ran)
            return ran
        finally:
            self._keeper.ended(item, reserved, actual, name)


def _actual(item: Item, spending: Spending, ran: Ran) -> Amount | None:
    """What the request has cost; None if that is not known."""
    match ran:
        case Deferred():
            return _NOTHING
        case Completed() if ran.usage != NO_USAGE:
            return _amount(item, spending, ran.usage)
        case Failed() if ran.status_code is not None:
            return _amount(item, spending, ran.usage)
        case Retried() if ran.error_code.startswith("http_"):
            return _amount(item, spending, ran.usage)
    return None


def _reports_usage(verdict: Verdict) -> bool:
    """Whether the counters have what the request has cost. A verdict that stands for one that the database
    refused does not say it."""
    return isinstance(verdict, (Completed, Failed, Retried)) and verdict.usage != NO_USAGE


def _amount(item: Item, spending: Spending, usage: Usage) -> Amount:
    return Amount(spending.cost(item.claim.model, usage), usage.input_tokens + usage.output_tokens)


def _key(item: Item) -> tuple[int, int]:
    return item.claim.span_id, item.ordinal


def _refuse(account: _Account, why: Grant) -> None:
    for request in account.waiting:
        if not request.answer.done():
            request.answer.set_result(why)
    account.waiting.clear()
