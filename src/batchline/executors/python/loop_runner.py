"""Awaits async functions in the worker's event loop. A time limit cancels them."""

import asyncio
from collections.abc import Sequence

from batchline.executors.executor import Fence
from batchline.executors.python.calls import HandlerCall
from batchline.executors.python.judge import Judge
from batchline.executors.python.loop_share import LoopShare
from batchline.executors.python.outcome import (
    INVALID_ITEM,
    FailedForGood,
    Outcome,
    cleaned,
    outcome_of,
    outcome_of_error,
)
from batchline.executors.python.time_limits import TimeLimits
from batchline.model import Item, Verdict
from batchline.operations.codec import TypeMismatch
from batchline.operations.context import Context, Stages
from batchline.operations.operation import AnyOperation
from batchline.operations.user_errors import is_cancellation


class LoopRunner:
    """Runs one item per call. This is the fastest kind of operation, so an item costs one coroutine."""

    def __init__(self, operation: AnyOperation, stages: Stages, judge: Judge, share: LoopShare) -> None:
        self._operation = operation
        self._stages = stages
        self._judge = judge
        self._share = share
        self._handler = operation.handler
        self._decode = operation.codec.decode_item
        self._takes_context = operation.takes_context
        self._limits = TimeLimits(operation.options.timeout)

    async def run(self, item: Item) -> Verdict:
        while self._share.used_up():
            await self._share.later_pass()
        try:
            value = self._decode(item.body)
        except TypeMismatch as error:
            return self._judge.verdict(item, FailedForGood(INVALID_ITEM, cleaned(str(error))))
        context = Context(item, self._operation, self._stages) if self._takes_context else None
        outcome: Outcome
        limit = self._limits.begin()
        try:
            try:
                result = await (self._handler(value) if context is None else self._handler(value, context))
            finally:
                self._limits.end(limit)
            outcome = outcome_of(self._operation, context, result)
        except BaseException as error:
            cancelled, expired = is_cancellation(error), limit is not None and limit.expired
            if context is not None and (cancelled or expired):
                context.cancel()
            if cancelled:
                raise
            outcome = self._judge.timed_out if expired else outcome_of_error(error)
        return self._judge.verdict(item, outcome)

    async def run_alone(self, item: Item) -> Verdict:
        return await self.run(item)

    def fenced_by(self, fence: Fence) -> None:
        return

    def wind_down(self) -> None:
        return

    async def close(self) -> None:
        self._limits.close()


class LoopCaller:
    """Calls an async function with chunks."""

    def __init__(self, operation: AnyOperation, stages: Stages, judge: Judge) -> None:
        self._operation = operation
        self._stages = stages
        self._timed_out = judge.timed_out
        self._timeout = operation.options.timeout

    async def call(self, items: Sequence[Item]) -> Sequence[Outcome]:
        call = HandlerCall(self._operation, items, self._stages)
        try:
            async with asyncio.timeout(self._timeout):
                return await call.run_async()
        except TimeoutError:
            # No other one comes here: those of the handler are outcomes.
            call.cancel()
            return call.all(self._timed_out)
        except asyncio.CancelledError:
            call.cancel()
            raise

    def fenced_by(self, fence: Fence) -> None:
        return

    def wind_down(self) -> None:
        return

    async def close(self) -> None:
        return
