"""Which delays the stopped clock of a test stretches."""

from datetime import UTC, datetime

from batchline.executors.executor import Executor
from batchline.model import Deferred, Item, Ran, Retried
from batchline.operations.operation import make_operation
from batchline.store.stopped_clock import StoppedClock
from batchline.testing.stopped_executor import StoppedExecutor
from tests.support.python_operations import an_item


async def noop(item: int) -> None: ...


class Giving(Executor):
    """Always the same verdict."""

    def __init__(self, ran: Ran) -> None:
        self._ran = ran

    async def run(self, item: Item) -> Ran:
        return self._ran


async def test_an_item_that_found_no_slot_does_not_wait_for_the_clock_of_the_test() -> None:
    item, clock = an_item(make_operation(noop), 1), StoppedClock(datetime(2026, 1, 1, tzinfo=UTC))
    retried = await StoppedExecutor(Giving(Retried(item, "Odd", "", 1.0)), clock).run(item)
    assert isinstance(retried, Retried)
    assert retried.delay > 86_400
    deferred = Deferred(item, 1.0)
    assert await StoppedExecutor(Giving(deferred), clock).run(item) == deferred
