"""Calls functions in threads of this process.

A thread cannot be ended. After a time limit the attempt has failed at once, and the thread keeps its slot
until the function returns. Threads are daemons: one that never returns does not keep the worker from ending.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import TypeAlias

from batchline.executors.executor import Fence
from batchline.executors.python.calls import HandlerCall
from batchline.executors.python.judge import Judge
from batchline.executors.python.outcome import Outcome
from batchline.executors.python.slots import CallSlots
from batchline.model import Item
from batchline.operations.context import Stages
from batchline.operations.operation import AnyOperation

_Outcomes: TypeAlias = list[Outcome]
_Job: TypeAlias = Callable[[], None]


class ThreadCaller:
    def __init__(self, operation: AnyOperation, stages: Stages, judge: Judge) -> None:
        self._operation = operation
        self._stages = stages
        self._timed_out = judge.timed_out
        self._timeout = operation.options.timeout
        self._slots = CallSlots(operation.options.calls)
        self._threads = HandlerThreads(operation.name, self._slots.leave)

    async def call(self, items: Sequence[Item]) -> Sequence[Outcome] | None:
        if not await self._slots.enter():
            return None
        call = HandlerCall(self._operation, items, self._stages)
        answer = self._threads.start(call.run)
        try:
            async with asyncio.timeout(self._timeout):
                return await answer
        except TimeoutError:
            call.cancel()
            return call.all(self._timed_out)
        except asyncio.CancelledError:
            call.cancel()
            raise

    def fenced_by(self, fence: Fence) -> None:
        self._slots.fence = fence

    def wind_down(self) -> None:
        self._slots.wind_down()

    async def close(self) -> None:
        self._threads.close()


class HandlerThreads:
    """Threads, started on demand: never more than there are calls. `on_end` is called, on the event loop,
    when a call has returned, whether anybody waits for it or not."""

    def __init__(self, name: str, on_end: Callable[[], None]) -> None:
        self._name = f"handler-{name}"
        self._on_end = on_end
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._count = 0
        self._idle = 0

    def start(self, act: Callable[[], _Outcomes]) -> "asyncio.Future[_Outcomes]":
        """Run `act` in a thread. The answer is what it returns or raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Outcomes] = loop.create_future()
        context = copy_context()

        def job() -> None:
            outcomes: _Outcomes | BaseException
            try:
                outcomes = context.run(act)
            except BaseException as error:  # noqa: BLE001
                # The thread has to serve further calls, and its slot must become free.
                outcomes = error
            # RuntimeError: the loop has ended meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._ended, answer, outcomes)

        if self._idle:
            self._idle -= 1
        else:
            self._start_thread()
        self._jobs.put(job)
        return answer

    def close(self) -> None:
        """Threads end when they return."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except BaseException:
            # The system has no thread left. The call has ended before it began.
            self._on_end()
            raise
        self._count += 1

    def _ended(self, answer: "asyncio.Future[_Outcomes]", outcomes: _Outcomes | BaseException) -> None:
        self._idle += 1
        self._on_end()
        if answer.done():
            return
        if isinstance(outcomes, BaseException):
            error = RuntimeError("the outcome of a handler could not be read")
            error.__cause__ = outcomes
            answer.set_exception(error)
        else:
            answer.set_result(outcomes)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
