"""Runs the calls of one kind: appends them, works on them, and answers them. All of it on one event loop."""

import asyncio
from contextlib import suppress
from typing import Self

from batchline.app.core import OpenedApp
from batchline.app.errors import translated
from batchline.app.models.call_batch import CallBatch, CallKind, open_call_batch
from batchline.app.models.call_feeder import CallFeeder
from batchline.app.models.call_results import CallResults
from batchline.app.models.model_worker import Listening, model_worker
from batchline.app.models.pending_call import CallNames, PendingCall
from batchline.config.settings import UpstreamSettings, WorkerSettings
from batchline.model import RunSettings
from batchline.operations.errors import BatchlineError
from batchline.store import batches, feeding
from batchline.worker.worker import Worker

# Seconds between two looks at a batch that another worker may end.
_LOOK = 0.5


class CallLane:
    """Until `close`. Calls whose lines are stored are answered by the next process if this one dies."""

    def __init__(self, opened: OpenedApp, kind: CallKind, of: CallBatch, settings: WorkerSettings) -> None:
        sessions = opened.loops.here().sessions
        self._opened = opened
        self._of = of
        self._settings = settings
        self._names = CallNames()
        self._results = CallResults(sessions, of, kind.url, self._send)
        self._feeder = CallFeeder(sessions, of, kind.url, self._results.wait_for)
        self._ended = asyncio.Event()
        self._ready: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._error: Exception | None = None
        self._serving = asyncio.create_task(self._serve())

    @classmethod
    async def opened(
        cls, opened: OpenedApp, kind: CallKind, run: RunSettings, upstream: UpstreamSettings
    ) -> Self:
        with translated():
            async with opened.loops.here().sessions.one() as session:
                found = await open_call_batch(session, kind, run)
        return cls(opened, kind, found, WorkerSettings(concurrency=upstream.concurrency))

    async def call(self, body: bytes) -> bytes:
        """The output line of a request."""
        if self._error is not None:
            raise BatchlineError(f"the worker of this client has stopped: {self._error}") from self._error
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._send(PendingCall(self._names.name(body), body, answer))
        return await answer

    async def close(self, *, finish: bool) -> None:
        """Stop. `finish`: end the batch first."""
        try:
            if finish and not self._serving.done():
                with translated():
                    await self._finish()
        finally:
            await self._stop()

    async def _finish(self) -> None:
        """Release the batch, and wait until this worker or another one has ended it."""
        sessions, batch_id = self._opened.loops.here().sessions, self._of.batch.id
        async with sessions.one() as session:
            released = await feeding.release(session, batch_id)
        while released and not self._serving.done():
            async with sessions.one() as session:
                batch = await batches.get(session, batch_id)
            if batch is None or batch.ended_at is not None:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _LOOK)

    async def _stop(self) -> None:
        if self._ready.done():
            worker = self._ready.result()
            worker.stop()
            if self._results.waiting:
                # Nobody waits for these answers any more. They are sent again under the same key.
                worker.stop()
        else:
            self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)

    def _send(self, call: PendingCall) -> None:
        self._feeder.add(call)

    async def _serve(self) -> None:
        """Until the worker is stopped. An error ends all calls that wait."""
        beside = [asyncio.create_task(self._feeder.run()), asyncio.create_task(self._results.run())]
        try:
            with translated():
                await self._work(beside)
            error: Exception = BatchlineError("the client was closed before this call had an answer")
        except Exception as found:  # noqa: BLE001
            error = found
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        self._error = error
        self._feeder.fail_all(error)
        self._results.fail_all(error)

    async def _work(self, beside: "list[asyncio.Task[None]]") -> None:
        listening = Listening(on_ended=lambda _: self._ended.set(), observer=self._results)
        runtime, batch = self._opened.runtime, self._of.batch
        async with (
            runtime.kept_running(),
            model_worker(runtime, batch.id, batch.settings, self._settings, listening) as (worker, _),
        ):
            self._ready.set_result(worker)
            working = asyncio.create_task(worker.run())
            try:
                done, _ = await asyncio.wait([working, *beside], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                worker.stop()
                await asyncio.gather(working, return_exceptions=True)
