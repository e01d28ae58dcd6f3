"""Gathers items of one batch into chunks, calls the function once per chunk, and gives each item its verdict.

A chunk is complete when it has its size, or when no item has come for a few milliseconds.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from batchline.executors.executor import Fence, no_fence
from batchline.executors.python.judge import Judge
from batchline.executors.python.outcome import Outcome
from batchline.executors.python.runner import Caller
from batchline.executors.python.slots import PATIENCE
from batchline.model import Deferred, Item, Verdict

# How long a chunk waits for its next item, and how long for all of them.
_NEXT = 0.005
_ALL = 0.05


class _Gathered:
    """Items of one batch that will be one chunk, and those who wait for their verdicts."""

    def __init__(self, batch_id: UUID, fence: object | None, now: float) -> None:
        self.batch_id = batch_id
        self.fence = fence
        self.waiting: list[tuple[Item, asyncio.Future[Verdict]]] = []
        self.first = self.last = now
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def items(self) -> list[Item]:
        return [item for item, _ in self.waiting]

    def give_back(self, delay: float) -> None:
        for item, verdict in self.waiting:
            if not verdict.done():
                verdict.set_result(Deferred(item, delay))

    def left(self) -> None:
        """Somebody waits no more."""
        if self.task is None:
            self.waiting = [each for each in self.waiting if not each[1].done()]
        elif all(verdict.done() for _, verdict in self.waiting):
            self.task.cancel()


class ChunkRunner:
    def __init__(self, caller: Caller, size: int, judge: Judge) -> None:
        self._caller = caller
        self._size = size
        self._judge = judge
        self._gathered: dict[UUID, _Gathered] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._fence: Fence = no_fence

    async def run(self, item: Item) -> Verdict:
        loop = asyncio.get_running_loop()
        verdict: asyncio.Future[Verdict] = loop.create_future()
        gathered = self._gathered.get(item.claim.batch_id)
        if gathered is None:
            gathered = _Gathered(item.claim.batch_id, self._fence(), loop.time())
            self._gathered[gathered.batch_id] = gathered
            gathered.timer = loop.call_later(_NEXT, self._look, gathered)
        gathered.waiting.append((item, verdict))
        gathered.last = loop.time()
        if len(gathered.waiting) >= self._size:
            self._start(gathered)
        try:
            return await verdict
        except asyncio.CancelledError:
            gathered.left()
            raise

    async def run_alone(self, item: Item) -> Verdict:
        outcomes = await self._caller.call((item,))
        return Deferred(item, PATIENCE) if outcomes is None else self._judge.verdict(item, outcomes[0])

    def fenced_by(self, fence: Fence) -> None:
        self._fence = fence
        self._caller.fenced_by(fence)

    def wind_down(self) -> None:
        for gathered in list(self._gathered.values()):
            self._take(gathered).give_back(0.0)
        self._caller.wind_down()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._caller.close()

    def _look(self, gathered: _Gathered) -> None:
        """Start the chunk, unless another item has just come."""
        loop = asyncio.get_running_loop()
        due = min(gathered.last + _NEXT, gathered.first + _ALL)
        if loop.time() < due:
            gathered.timer = loop.call_at(due, self._look, gathered)
        else:
            self._start(gathered)

    def _take(self, gathered: _Gathered) -> _Gathered:
        del self._gathered[gathered.batch_id]
        if gathered.timer is not None:
            gathered.timer.cancel()
        return gathered

    def _start(self, gathered: _Gathered) -> None:
        self._take(gathered)
        if gathered.waiting:
            gathered.task = asyncio.get_running_loop().create_task(self._call(gathered))
            self._tasks.add(gathered.task)
            gathered.task.add_done_callback(self._tasks.discard)

    async def _call(self, gathered: _Gathered) -> None:
        if gathered.fence is None or self._fence() != gathered.fence:
            # The lease was lost meanwhile, so another worker may be running them.
            gathered.give_back(0.0)
            return
        try:
            outcomes = await self._caller.call(gathered.items)
        except asyncio.CancelledError:
            for _, verdict in gathered.waiting:
                verdict.cancel()
            raise
        except Exception as error:  # noqa: BLE001
            for _, verdict in gathered.waiting:
                if not verdict.done():
                    verdict.set_exception(error)
            return
        if outcomes is None:
            gathered.give_back(PATIENCE)
        else:
            self._answer(gathered, outcomes)

    def _answer(self, gathered: _Gathered, outcomes: Sequence[Outcome]) -> None:
        for (item, verdict), outcome in zip(gathered.waiting, outcomes, strict=True):
            if not verdict.done():
                verdict.set_result(self._judge.verdict(item, outcome))
