"""The protocols of what runs the items of one operation."""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from batchline.executors.executor import Fence
from batchline.executors.python.judge import Judge
from batchline.executors.python.outcome import Outcome
from batchline.executors.python.slots import PATIENCE
from batchline.model import Deferred, Item, Ran, Verdict


class Caller(Protocol):
    """Calls a function somewhere."""

    async def call(self, items: Sequence[Item]) -> Sequence[Outcome] | None:
        """One outcome per item. None: the function was not called, so give the items back."""
        ...

    def fenced_by(self, fence: Fence) -> None: ...

    def wind_down(self) -> None: ...

    async def close(self) -> None: ...


class OperationRunner(Protocol):
    """Runs the items of one operation."""

    def run(self, item: Item) -> Coroutine[Any, Any, Ran]: ...

    def run_alone(self, item: Item) -> Coroutine[Any, Any, Ran]:
        """The same, in a call of its own."""
        ...

    def fenced_by(self, fence: Fence) -> None: ...

    def wind_down(self) -> None: ...

    async def close(self) -> None: ...


class SingleRunner:
    """Calls the function once per item."""

    def __init__(self, caller: Caller, judge: Judge) -> None:
        self._caller = caller
        self._judge = judge
        self.fenced_by = caller.fenced_by
        self.wind_down = caller.wind_down
        self.close = caller.close

    async def run(self, item: Item) -> Verdict:
        outcomes = await self._caller.call((item,))
        if outcomes is None:
            return Deferred(item, PATIENCE)
        return self._judge.verdict(item, outcomes[0])

    async def run_alone(self, item: Item) -> Verdict:
        return await self.run(item)
