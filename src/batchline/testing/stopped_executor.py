"""Items wait for their next attempt by the clock of the test."""

from msgspec.structs import replace

from batchline.executors.executor import Executor, Fence
from batchline.model import Item, Ran, Retried
from batchline.model.verdict import TaskParked, TimedOut
from batchline.store.stopped_clock import StoppedClock

# Not Deferred: such an item has found no slot, and no time of the test makes one free.
_WAITING = (Retried, TaskParked, TimedOut)


class StoppedExecutor(Executor):
    """Changes only the delays of verdicts."""

    def __init__(self, executor: Executor, clock: StoppedClock) -> None:
        self._executor = executor
        self._clock = clock

    async def run(self, item: Item) -> Ran:
        ran = await self._executor.run(item)
        if isinstance(ran, _WAITING) and ran.delay > 0:
            return replace(ran, delay=self._clock.delay(ran.delay))
        return ran

    def fenced_by(self, fence: Fence) -> None:
        self._executor.fenced_by(fence)

    def wind_down(self) -> None:
        self._executor.wind_down()

    async def close(self) -> None:
        await self._executor.close()
