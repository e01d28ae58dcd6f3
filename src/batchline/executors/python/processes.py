"""Calls functions in child processes, one item or chunk at a time in each.

A time limit kills the process, whatever it does. A process that ends fails only the call that ran there.
Another one is started when it is needed.
"""

import asyncio
import os
import sys
from collections.abc import Sequence

import structlog

from batchline.executors.executor import Fence
from batchline.executors.python.child_process import ChildProcess, FunctionNotImported, ProcessNotStarted
from batchline.executors.python.judge import Judge
from batchline.executors.python.messages import ChildSetup, encode_items
from batchline.executors.python.outcome import AttemptFailed, FailedForGood, Outcome, Returned, cleaned
from batchline.executors.python.slots import CallSlots
from batchline.model import Item
from batchline.model.emission import PYTHON, Emission
from batchline.operations.codec import TypeMismatch
from batchline.operations.context import Stages
from batchline.operations.operation import AnyOperation

PROCESS_DIED, PROCESS_NOT_STARTED = "process_died", "process_not_started"
IMPORT_FAILED = "import_failed"

_log = structlog.get_logger("batchline.handlers")


class ProcessCaller:
    def __init__(self, operation: AnyOperation, stages: Stages, judge: Judge) -> None:
        self._operation = operation
        self._stages = stages
        self._timed_out = judge.timed_out
        self._timeout = operation.options.timeout
        self._slots = CallSlots(operation.options.calls)
        self._idle: list[ChildProcess] = []
        self._children: set[ChildProcess] = set()
        # Problems of the operation, so that each is logged once.
        self._reported: set[str] = set()

    @property
    def process_ids(self) -> list[int]:
        return [child.pid for child in self._children if not child.ended.is_set()]

    async def call(self, items: Sequence[Item]) -> Sequence[Outcome] | None:
        if not await self._slots.enter():
            return None
        try:
            return await self._call(items)
        finally:
            self._slots.leave()

    def fenced_by(self, fence: Fence) -> None:
        self._slots.fence = fence

    def wind_down(self) -> None:
        self._slots.wind_down()

    async def close(self) -> None:
        """Kill all processes, including busy ones."""
        children, self._children = self._children, set()
        await asyncio.gather(*(child.close() for child in children))

    async def _call(self, items: Sequence[Item]) -> Sequence[Outcome]:
        child = self._idle_child() or ChildProcess()
        try:
            if child not in self._children:
                self._children.add(child)
                await child.start(_setup(self._operation))
            async with asyncio.timeout(self._timeout):
                outcomes = await child.call(encode_items(items))
        except ProcessNotStarted as error:
            await self._discard(child)
            return [self._not_started(error)] * len(items)
        except TimeoutError:
            await self._discard(child)
            return [self._timed_out] * len(items)
        except BaseException:
            child.kill()
            raise
        if outcomes is None or len(outcomes) != len(items):
            message = f"The process of the function has died: {await child.why_ended()}."
            await self._discard(child)
            return [AttemptFailed(PROCESS_DIED, message)] * len(items)
        self._idle.append(child)
        return [self._checked(outcome) for outcome in outcomes]

    def _not_started(self, error: ProcessNotStarted) -> Outcome:
        problem = cleaned(str(error))
        if not isinstance(error, FunctionNotImported):
            return AttemptFailed(PROCESS_NOT_STARTED, problem)
        # Each item fails alike, and so would each attempt.
        if problem not in self._reported:
            self._reported.add(problem)
            _log.error("items fail without a retry", operation=self._operation.name, reason=problem)
        return FailedForGood(IMPORT_FAILED, problem)

    def _idle_child(self) -> ChildProcess | None:
        """One that has not ended while it was idle."""
        while self._idle:
            child = self._idle.pop()
            if not child.ended.is_set():
                return child
        return None

    async def _discard(self, child: ChildProcess) -> None:
        await child.close()
        self._children.discard(child)

    def _checked(self, outcome: Outcome) -> Outcome:
        """A child does not know the types of other stages."""
        if isinstance(outcome, Returned):
            for emission in outcome.emitted:
                if (problem := self._problem(emission)) is not None:
                    return AttemptFailed("InvalidItem", cleaned(problem))
        return outcome

    def _problem(self, emission: Emission) -> str | None:
        name = emission.url.removeprefix(PYTHON)
        stage = self._stages.find(name)
        if stage is None:
            return f"emitted to {name!r}, which is no operation of this app"
        try:
            stage.codec.decode_item(emission.body)
        except TypeMismatch as error:
            return f"emitted to {name!r}: {error}"
        return None


def _setup(operation: AnyOperation) -> ChildSetup:
    function = operation.function
    name, path = _main() if function.__module__ == "__main__" else (None, None)
    return ChildSetup(
        operation.name,
        function.__module__,
        function.__qualname__,
        operation.options,
        # An empty entry is the current folder.
        [each or os.getcwd() for each in sys.path],
        sys.argv,
        name,
        path,
    )


def _main() -> tuple[str | None, str | None]:
    """The module name or the file of the program, as multiprocessing finds them."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name, None
    path = getattr(main, "__file__", None)
    return None, None if path is None else os.path.abspath(path)
