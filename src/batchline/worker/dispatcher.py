"""Runs buffered items, as many at once as allowed, and hands their verdicts to the settler."""

import asyncio

import structlog

from batchline.executors.executor import Executor, unexpected
from batchline.model import Completed, Failed, Item
from batchline.worker.buffer import Buffer
from batchline.worker.lease import Lease
from batchline.worker.rate import Rate
from batchline.worker.settler import Settler

_DONE = (Completed, Failed)

_log = structlog.get_logger("batchline.dispatcher")


class Dispatcher:
    """A fixed crew of runners: a task for each item would cost more than the item."""

    def __init__(
        self,
        executor: Executor,
        buffer: Buffer,
        settler: Settler,
        lease: Lease,
        rate: Rate,
        concurrency: int,
    ) -> None:
        self._executor = executor
        self._buffer = buffer
        self._settler = settler
        self._lease = lease
        self._rate = rate
        self._concurrency = concurrency
        self._running: dict[int, Item] = {}

    @property
    def in_flight(self) -> int:
        return len(self._running)

    def spans(self) -> set[int]:
        return {item.claim.span_id for item in self._running.values()}

    async def run(self) -> None:
        """Until the buffer is closed and empty."""
        async with asyncio.TaskGroup() as crew:
            for _ in range(self._concurrency):
                crew.create_task(self._runner())

    async def _runner(self) -> None:
        # Looked up once: this loop is among what an item costs.
        buffer, lease, executor, settler, running = (
            self._buffer,
            self._lease,
            self._executor,
            self._settler,
            self._running,
        )
        while (item := buffer.pop() or await buffer.take()) is not None:
            if lease.lost:
                lease.give_up()
                continue
            running[id(item)] = item
            try:
                verdict = await executor.run(item)
            except Exception:  # noqa: BLE001
                # One item's surprise must not touch those in flight beside it.
                _log.exception("executor failed", request=item.request_id)
                verdict = unexpected(item)
            finally:
                del running[id(item)]
            settler.add(verdict)
            # What must be tried again is not done: an upstream that is away must not look like a fast one.
            if isinstance(verdict, _DONE):
                self._rate.count += 1
            if not running and not len(buffer):
                settler.hurry()
