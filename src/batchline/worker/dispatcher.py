"""Runs buffered items, as many at once as allowed, and hands their verdicts to the settler.

While too many bytes of answers are held, runners wait before they send more.
"""

import asyncio

from batchline.executors.executor import Executor
from batchline.executors.memory import BodyMemory
from batchline.model import Completed, Deferred, Failed, Item
from batchline.worker.buffer import Buffer
from batchline.worker.lease import Lease
from batchline.worker.rate import Rate
from batchline.worker.settler import Settler

_DONE = (Completed, Failed)


class Dispatcher:
    """A fixed crew of runners: a task for each item would cost more than the item."""

    def __init__(
        self,
        executor: Executor,
        buffer: Buffer,
        settler: Settler,
        lease: Lease,
        rate: Rate,
        memory: BodyMemory,
        concurrency: int,
    ) -> None:
        self._executor = executor
        self._buffer = buffer
        self._settler = settler
        self._lease = lease
        self._rate = rate
        self._memory = memory
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
        buffer, lease, executor, settler, running, memory = (
            self._buffer,
            self._lease,
            self._executor,
            self._settler,
            self._running,
            self._memory,
        )
        while (item := buffer.pop() or await buffer.take()) is not None:
            running[id(item)] = item
            try:
                if memory.crowded:
                    await memory.room()
                if lease.lost:
                    lease.give_up()
                    continue
                verdict = Deferred(item) if buffer.closed else await executor.run(item)
                settler.add(verdict)
            finally:
                del running[id(item)]
                buffer.done(item)
            # What must be tried again is not done: an upstream that is away must not look like a fast one.
            if isinstance(verdict, _DONE):
                self._rate.count += 1
            # An idle runner must not keep the last answer in memory.
            del item, verdict
            if not running and not len(buffer):
                settler.hurry()
