"""Runs buffered items, as many at once as its upstream allows, and passes their verdicts to the settler.

While too many bytes of answers are held, runners wait before they send more.
"""

import asyncio
from collections.abc import Callable, Collection
from time import monotonic
from uuid import UUID

import structlog

from batchline.batches.output import failed_line
from batchline.executors.executor import unexpected
from batchline.model import Completed, Deferred, Failed, Item, Ran, Retried, TimedOut, Verdict
from batchline.secrets.tracebacks import traceback_of
from batchline.worker.buffer import Buffer
from batchline.worker.context import ProducerContext
from batchline.worker.rate import Rate
from batchline.worker.service import Service
from batchline.worker.slots import Slots

_DONE = (Completed, Failed)

_log = structlog.get_logger("batchline.dispatcher")


class Dispatcher(Service):
    """Runners that take one item after the other: a task for each item would cost more than the item.

    There is always one that waits for an item, up to the limit. When the limit is lowered, those beyond it
    end: at once if they wait, else after the item that they are running. Idle while nothing is buffered or
    running. `on_empty` is called after the last item.
    """

    name = "dispatcher"

    def __init__(
        self,
        context: ProducerContext,
        buffer: Buffer,
        slots: Slots,
        rate: Rate,
        on_empty: Callable[[], None],
    ) -> None:
        super().__init__()
        self._context = context
        self._buffer = buffer
        self._slots = slots
        self._rate = rate
        self._on_empty = on_empty
        self._runners = 0
        self._group: asyncio.TaskGroup | None = None
        buffer.on_put = self.idle.clear

    @property
    def in_flight(self) -> int:
        """Items that are sent, or wait for a slot that another producer of the same upstream uses."""
        return len(self._slots.running)

    @property
    def running(self) -> Collection[Item]:
        return self._slots.running.values()

    def spans(self) -> set[int]:
        return {item.claim.span_id for item in self._slots.running.values()}

    def give_back(self, batch_id: UUID | None = None) -> None:
        """Give back items that were not sent, all of them or those of one batch."""
        for item in self._buffer.discard(batch_id):
            self._context.settler.add(Deferred(item))
        self._rest()

    def discard(self) -> int:
        """Drop items that were not sent, because others may run them; how many there were."""
        dropped = len(self._buffer.discard())
        self._rest()
        return dropped

    def wake(self) -> None:
        """Nothing to do: items that arrive in the buffer wake the runners."""
        return

    def stop(self) -> None:
        self.give_back()
        self._buffer.close()
        self._context.memory.wind_down()

    def repair(self) -> None:
        # Requests were interrupted and have no verdict: others take over the old name's spans.
        self._context.lease.abandon()
        self._rest()

    @property
    def _busy(self) -> bool:
        return bool(self._slots.running or len(self._buffer))

    async def run(self) -> None:
        """Until the buffer is closed and empty."""
        self._runners = 0
        try:
            async with asyncio.TaskGroup() as self._group:
                self._start_runners(self._group)
        finally:
            self._group = None

    def add_runners(self) -> None:
        """The limit was raised. While all runners are busy, none of them would notice."""
        waiting = self._buffer.takers or self._buffer.closed
        if self._group is not None and self._runners < self._slots.limit.value and not waiting:
            self._start_runners(self._group)

    def _start_runners(self, runners: asyncio.TaskGroup) -> None:
        """One for each item that waits, and at least one."""
        for _ in range(min(max(len(self._buffer), 1), self._slots.limit.value - self._runners)):
            self._runners += 1
            runners.create_task(self._runner(runners))

    async def _runner(self, runners: asyncio.TaskGroup) -> None:
        # Looked up once: this loop runs for every item.
        context = self._context
        lease, executor, settler, memory = context.lease, context.executor, context.settler, context.memory
        buffer, rate, running, limit = self._buffer, self._rate, self._slots.running, self._slots.limit
        while (item := buffer.pop() or await buffer.take()) is not None:
            if self._runners < limit.value and not buffer.takers:
                self._start_runners(runners)
            running[id(item)] = item
            worker = lease.worker
            ran: Ran | None = None
            try:
                if memory.crowded:
                    await memory.room()
                if limit.in_flight < limit.value:
                    limit.in_flight += 1
                else:
                    await limit.enter()
                try:
                    if lease.lost:
                        lease.abandon()
                    elif lease.worker is worker:
                        # Otherwise the lease was lost while it waited, and others may be running it.
                        in_flight, sent_in = limit.in_flight, limit.round
                        item.stamps.sent = monotonic()
                        try:
                            ran = Deferred(item) if buffer.closed else await executor.run(item)
                        except Exception as error:  # noqa: BLE001
                            # One item's unexpected error must not affect the others in flight.
                            _log.error("executor failed", **item.log_fields(), exception=traceback_of(error))
                            ran = unexpected(item)
                        item.stamps.answered = monotonic()
                        # An item that must be tried again is not done: an unreachable upstream is not a fast
                        # one.
                        if isinstance(ran, _DONE):
                            rate.count += 1
                        if limit.adapting or item.stamps.refused:
                            self._note(ran, sent_in)
                        settler.add(
                            self._judge(ran, sent_in, in_flight) if isinstance(ran, TimedOut) else ran
                        )
                finally:
                    limit.leave()
            finally:
                del running[id(item)]
                buffer.done(item)
            # An idle runner must not keep the last answer in memory.
            del item, ran
            if not running and not len(buffer):
                self.idle.set()
                self._on_empty()
            if self._runners > limit.value:
                self._runners -= 1
                return

    def _note(self, ran: Ran, sent_in: int) -> None:
        """Tell the limit how the request ended. An error says nothing about how much the upstream takes."""
        item, limit = ran.item, self._slots.limit
        if item.stamps.refused:
            limit.refused(item, sent_in)
        elif isinstance(ran, Completed):
            limit.answered(item, sent_in, ran.usage.output_tokens)
        elif isinstance(ran, Failed):
            limit.failed(item)

    def _judge(self, timed_out: TimedOut, sent_in: int, in_flight: int) -> Verdict:
        """Another attempt if the time-out counts and one is left; the same attempt again if it does not."""
        item, limit = timed_out.item, self._slots.limit
        counts = limit.timed_out(item, sent_in, max(in_flight, limit.in_flight))
        self._runners -= self._buffer.dismiss(self._runners - limit.value)
        if not counts:
            return Deferred(item, timed_out.delay, sent_to=item.claim.stays_with)
        if item.claim.attempts_left:
            code, message, delay = timed_out.error_code, timed_out.message, timed_out.delay
            # It may have run, or run still.
            return Retried(item, code, message, delay, sent_to=item.claim.stays_with)
        limit.forget(item)
        return Failed(item, failed_line(item, timed_out.error_code, timed_out.message))
