"""The executor for Python operations: runs the items of an app's functions, and passes all others on.

It assumes that the item is this worker's to run. Whatever a handler does is a verdict on its item, and never
ends the worker, except a crash of the whole process. An item whose workers have died twice runs without
another such item beside it; after the third time it has failed. A request to a model ends no worker, so items
of stages of batchline.toml run in any case.
"""

import asyncio
from collections.abc import Coroutine
from time import monotonic
from typing import Any

import structlog

from batchline.batches.output import failed_line
from batchline.executors.executor import Executor, Fence, no_fence
from batchline.executors.http import HttpExecutor
from batchline.executors.python.chunks import ChunkRunner
from batchline.executors.python.collecting import Collector
from batchline.executors.python.http_runner import HttpStageRunner
from batchline.executors.python.judge import Judge
from batchline.executors.python.loop_runner import LoopCaller, LoopRunner
from batchline.executors.python.loop_share import LoopShare
from batchline.executors.python.processes import ProcessCaller
from batchline.executors.python.runner import Caller, OperationRunner, SingleRunner
from batchline.executors.python.threads import ThreadCaller
from batchline.model import Deferred, Failed, Item, Ran, Verdict
from batchline.model.emission import PYTHON
from batchline.operations.catalog import OperationCatalog
from batchline.operations.http_stage import HttpStage
from batchline.operations.operation import AnyOperation
from batchline.operations.options import LOOP, THREAD

WORKER_DIED = "worker_died"
# So many workers have died while they held the item.
_SUSPECT, _MAX_LOSSES = 2, 3
# Suspects run one at a time. So many wait for their turn here. Others come back after about the time that
# these take, within these seconds.
_SUSPECTS_WAITING = 16
_MIN_SUSPECT_DELAY, _MAX_SUSPECT_DELAY = 0.05, 1.0
# An item that this worker cannot run comes back after this long: another worker may be able to.
_ELSEWHERE_DELAY = 30.0

_log = structlog.get_logger("batchline.python")


class PythonExecutor:
    """Runs items of operations in `catalog`; all items that are not Python's go to `otherwise`. `http` sends
    the requests of stages that are no functions; it is closed with this."""

    def __init__(
        self,
        catalog: OperationCatalog,
        otherwise: Executor | None = None,
        collector: Collector | None = None,
        http: HttpExecutor | None = None,
    ) -> None:
        self._catalog = catalog
        self._otherwise = otherwise
        self._collector = collector
        self._http = http
        self._runners: dict[str, tuple[AnyOperation, OperationRunner]] = {}
        # Of operations that were defined again.
        self._replaced: list[OperationRunner] = []
        self._warned: set[str] = set()
        self._suspects = 0
        self._suspect_lock = asyncio.Lock()
        self._suspect_delay = _MIN_SUSPECT_DELAY
        self._winding_down = False
        self._share = LoopShare()
        self._fence: Fence = no_fence

    def run(self, item: Item) -> Coroutine[Any, Any, Ran]:
        # Not a coroutine itself: each item would pay for one more.
        claim = item.claim
        operation = self._catalog.find_url(claim.url)
        if operation is None or (self._http is None and isinstance(operation, HttpStage)):
            if self._otherwise is None or claim.url.startswith(PYTHON):
                return self._elsewhere(item)
            return self._otherwise.run(item)
        known = self._runners.get(claim.url)
        runner = known[1] if known is not None and known[0] is operation else self._open(operation)
        if operation.options.collects is not None:
            return self._run_collecting(runner, item, PYTHON + operation.options.collects)
        if claim.losses < _SUSPECT or isinstance(operation, HttpStage):
            return runner.run(item)
        return self._run_suspect(runner, item)

    def fenced_by(self, fence: Fence) -> None:
        self._fence = fence
        for executor in self._executors():
            executor.fenced_by(fence)

    def wind_down(self) -> None:
        self._winding_down = True
        for runner in self._all_runners():
            runner.wind_down()
        for executor in self._executors():
            executor.wind_down()

    async def close(self) -> None:
        for runner in self._all_runners():
            await runner.close()
        if self._collector is not None:
            await self._collector.close()
        for executor in self._executors():
            await executor.close()

    def _executors(self) -> list[Executor]:
        return [each for each in (self._http, self._otherwise) if each is not None]

    def _all_runners(self) -> list[OperationRunner]:
        return [*self._replaced, *(runner for _, runner in self._runners.values())]

    def _open(self, operation: AnyOperation) -> OperationRunner:
        if operation.url in self._runners:
            self._replaced.append(self._runners[operation.url][1])
        runner = self._runner(operation)
        runner.fenced_by(self._fence)
        self._runners[operation.url] = operation, runner
        return runner

    def _runner(self, operation: AnyOperation) -> OperationRunner:
        options, judge = operation.options, Judge(operation)
        if isinstance(operation, HttpStage):
            assert self._http is not None
            return HttpStageRunner(operation, self._http, judge)
        if options.run_in == LOOP and options.chunk is None:
            return LoopRunner(operation, self._catalog, judge, self._share)
        if options.run_in == LOOP:
            caller: Caller = LoopCaller(operation, self._catalog, judge)
        elif options.run_in == THREAD:
            caller = ThreadCaller(operation, self._catalog, judge)
        else:
            caller = ProcessCaller(operation, self._catalog, judge)
        return (
            SingleRunner(caller, judge)
            if options.chunk is None
            else ChunkRunner(caller, options.chunk, judge)
        )

    async def _run_collecting(self, runner: OperationRunner, item: Item, source: str) -> Ran:
        if self._collector is None:
            return await self._elsewhere(item)
        found = await self._collector.collect(item, source)
        if not isinstance(found, Item):
            return found
        return await (runner.run(found) if item.claim.losses < _SUSPECT else self._run_suspect(runner, found))

    async def _run_suspect(self, runner: OperationRunner, item: Item) -> Ran:
        losses = item.claim.losses
        if losses >= _MAX_LOSSES:
            message = f"{losses} workers died while they held this item."
            return Failed(item, failed_line(item, WORKER_DIED, message))
        if self._suspects > _SUSPECTS_WAITING:
            return Deferred(item, self._suspect_delay)
        self._suspects += 1
        try:
            return await self._run_alone(runner, item)
        finally:
            self._suspects -= 1

    async def _run_alone(self, runner: OperationRunner, item: Item) -> Ran:
        held = self._fence()
        async with self._suspect_lock:
            # While it waited, the lease may have been lost: then another worker may be running it.
            if self._winding_down or held is None or self._fence() != held:
                return Deferred(item)
            began = monotonic()
            try:
                return await runner.run_alone(item)
            finally:
                takes = _SUSPECTS_WAITING * (monotonic() - began)
                self._suspect_delay = max(_MIN_SUSPECT_DELAY, min(takes, _MAX_SUSPECT_DELAY))

    async def _elsewhere(self, item: Item) -> Verdict:
        url = item.claim.url
        if url not in self._warned:
            self._warned.add(url)
            _log.warning("this app has no such operation; another worker may run its items", url=url)
        return Deferred(item, _ELSEWHERE_DELAY)
