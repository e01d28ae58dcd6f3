"""Runs items of governed Python operations, by the same runners as other items of these operations.

No secret of an item, and nothing that its function quotes of it, appears in a verdict.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from batchline.batches.output import answered_line, failed_line, response_body
from batchline.executors.displayed import displayed_result, displayed_text
from batchline.executors.executor import Executor, Fence
from batchline.governance.operations import Operation
from batchline.model import Completed, Failed, Item, Ran, Retried
from batchline.model.emission import PYTHON
from batchline.model.failure import error_of_line
from batchline.operations.pydantic_types import without_inputs

# Up to here an item with its result is searched for secrets on the event loop, in a few milliseconds.
_MAX_ON_LOOP = 4 * 1024
# Larger ones wait for one of these threads.
_THREADS = 2

T = TypeVar("T")

_decode = msgspec.json.Decoder().decode


class GovernedExecutor:
    """Runs items of governed operations as those of their functions; all others go to `functions` as they
    are."""

    def __init__(self, governed: Iterable[Operation], functions: Executor) -> None:
        self._governed = {operation.url: operation for operation in governed}
        self._functions = functions
        self._threads = ThreadPoolExecutor(_THREADS, "mask")

    def run(self, item: Item) -> Coroutine[Any, Any, Ran]:
        # Not a coroutine itself: items that are not governed would pay for it.
        operation = self._governed.get(item.claim.url)
        return self._functions.run(item) if operation is None else self._run(operation, item)

    def fenced_by(self, fence: Fence) -> None:
        self._functions.fenced_by(fence)

    def wind_down(self) -> None:
        self._functions.wind_down()

    async def close(self) -> None:
        await self._functions.close()
        await asyncio.to_thread(self._threads.shutdown)

    async def _run(self, operation: Operation, item: Item) -> Ran:
        claim = replace(item.claim, url=PYTHON + operation.name)
        ran = await self._functions.run(replace(item, claim=claim))
        size = len(item.body) + (len(ran.output) if isinstance(ran, Completed | Failed) else 0)
        return await self._beside(size, lambda: _displayed(operation, item, ran))

    async def _beside(self, size: int, act: Callable[[], T]) -> T:
        """The result of `act`, in a thread if the data is large: users decide how large."""
        if size <= _MAX_ON_LOOP:
            return act()
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)


def _displayed(operation: Operation, item: Item, ran: Ran) -> Ran:
    """The verdict on the governed item, without its secrets."""
    requested = _decode(item.body)

    def hidden(text: str) -> str:
        return displayed_text(operation, requested, without_inputs(text))

    match ran:
        case Completed():
            text = response_body(ran.output)
            body = displayed_result(operation, requested, text, _decode(text))
            return replace(ran, item=item, output=answered_line(item, ran.status_code, item.request_id, body))
        case Failed():
            code, message = error_of_line(ran.output, ran.status_code)
            return replace(ran, item=item, output=failed_line(item, hidden(code), hidden(message)))
        case Retried():
            return replace(ran, item=item, error_code=hidden(ran.error_code), message=hidden(ran.message))
        case _:
            return replace(ran, item=item)
