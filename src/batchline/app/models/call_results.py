"""Answers calls when their lines have ended: looks for many at once.

The worker of this process says which lines it has ended. Lines that another process with the same name has
ended are found by looking at all that wait, in turns.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic

import structlog

from batchline.app.errors import translated
from batchline.app.models.call_batch import CallBatch
from batchline.app.models.call_outcome import read_outcome
from batchline.app.models.pending_call import PendingCall
from batchline.model import Completed, Failed, Verdict
from batchline.operations.errors import BatchClosed, DatabaseUnavailable
from batchline.store import calls, python_results
from batchline.store.pool import Sessions
from batchline.worker.observer import WorkerObserver
from batchline.worker.pause import Pause

# Seconds between two looks at lines of which nobody says that they have ended.
_SWEEP = 0.25
# Lines per look.
_PAGE = 2_000

_log = structlog.get_logger("batchline.client")


class CallResults(WorkerObserver):
    """`on_stale` gets calls whose line had failed before they were made."""

    def __init__(
        self, sessions: Sessions, of: CallBatch, url: str, on_stale: Callable[[PendingCall], None]
    ) -> None:
        self._sessions = sessions
        self._of = of
        self._url = url
        self._on_stale = on_stale
        # By line number. Each call has its own line.
        self._waiting: dict[int, PendingCall] = {}
        # Lines to look at now.
        self._due: dict[int, None] = {}
        self._woken = asyncio.Event()
        self._swept = 0.0

    def wait_for(self, call: PendingCall) -> None:
        line_no = call.line_no
        self._waiting[line_no] = call
        call.answer.add_done_callback(lambda _: self._waiting.pop(line_no, None))
        self._woken.set()
        if call.inherited:
            self._due[line_no] = None

    def settle_ended(self, seconds: float, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            if isinstance(verdict, Completed | Failed) and verdict.item.line_no in self._waiting:
                self._due[verdict.item.line_no] = None
                self._woken.set()

    async def run(self) -> None:
        pause = Pause()
        while True:
            await self._until_woken()
            try:
                with translated():
                    if self._due:
                        await self._look()
                    if monotonic() - self._swept >= _SWEEP:
                        await self._sweep()
                pause.reset()
            except DatabaseUnavailable as error:
                _log.warning("calls wait for the database", reason=str(error))
                await pause.wait()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def fail_all(self, error: Exception) -> None:
        for call in list(self._waiting.values()):
            call.fail(error)

    async def _until_woken(self) -> None:
        if self._due:
            return
        self._woken.clear()
        try:
            async with asyncio.timeout(_SWEEP if self._waiting else None):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _look(self) -> None:
        looked = list(islice(self._due, _PAGE))
        async with self._sessions.one() as session:
            found = await calls.results(session, self._of.lane, looked)
        if sum(len(line) for _, line in found) >= calls.ROOM:
            # The others have not been looked at.
            last = found[-1][0]
            looked = [line_no for line_no in looked if line_no <= last]
        for line_no in looked:
            del self._due[line_no]
        self._answer(found)

    async def _sweep(self) -> None:
        """Look at some that wait. The others have their turn next time."""
        page = list(islice(self._waiting, _PAGE))
        if page:
            async with self._sessions.one() as session:
                # First: results that come after this look are not missed if the batch ends meanwhile.
                lane = await python_results.lane(session, self._of.batch.id, self._url)
                found = await calls.results(session, self._of.lane, page)
            self._answer(found)
            page = [line_no for line_no in page if line_no in self._waiting]
            if not found and (lane is None or lane.frozen):
                self._close(page)
            for line_no in page:
                if (call := self._waiting.pop(line_no, None)) is not None:
                    self._waiting[line_no] = call
        self._swept = monotonic()

    def _answer(self, found: Sequence[tuple[int, bytes]]) -> None:
        for line_no, line in found:
            call = self._waiting.pop(line_no, None)
            if call is None or call.answer.done():
                continue
            if call.inherited and not read_outcome(line).completed:
                call.after = line_no
                self._on_stale(call)
            else:
                call.answer.set_result(line)

    def _close(self, line_nos: Sequence[int]) -> None:
        """The batch has ended, and these lines have no result."""
        error = BatchClosed("the batch was cancelled, or has ended, before this call had an answer")
        for line_no in line_nos:
            self._waiting[line_no].fail(error)
