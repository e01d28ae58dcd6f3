"""Works on a batch in this process, and shows its progress."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import msgspec

from batchline.app.exit_guard import exit_guard
from batchline.app.models.model_worker import Listening, model_worker
from batchline.cli.arrangement_options import duplicates_line
from batchline.cli.display.console import CommandError
from batchline.cli.display.progress import DisplayedProgress, Gauge
from batchline.cli.display.screen import Display, display
from batchline.cli.display.units import counted
from batchline.cli.options import Exit
from batchline.cli.run.files import Writing
from batchline.cli.run.order import RunOrder
from batchline.cli.runtime import Runtime
from batchline.host.disk import full_message, says_full
from batchline.model import Batch, ids
from batchline.store.session import Session, StoreUnavailable
from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.worker import Worker

_REFRESH = 0.25
_DISK_PATIENCE = 30.0
# `run` ends with an error when finalizing has failed this often, about half a minute after the first failure.
_FINALIZE_TRIES = 6


async def work(
    order: RunOrder,
    runtime: Runtime,
    session: Session,
    batch: Batch,
    writing: Writing | None,
) -> tuple[Batch, bool]:
    """Run the batch until it has ended, a rule pauses it, the user stops it, or `writing` ends. Returns the
    batch and whether it was stopped."""
    ended = asyncio.Event()
    listening = Listening(
        on_ended=lambda _: ended.set(), tracing=order.tracing, traced=order.traces.headers_to
    )
    if not order.as_json:
        identical = duplicates_line(batch)
        note = "" if identical is None else f"; {identical}"
        order.console().print(
            f"{ids.show(ids.BATCH, batch.id)}: {counted(batch.total, 'line')}{note}", markup=False
        )
    screen = display(order.console(), order.inputs.title, silent=order.as_json)
    settings = msgspec.structs.replace(order.settings, relay=batch.settings.relay)
    async with model_worker(runtime, batch.id, settings, order.worker, listening, order.budgets) as (
        worker,
        upstreams,
    ):
        working = asyncio.create_task(worker.run())
        try:
            async with exit_guard(worker):
                with screen, _Signals(worker, screen), _stopped_by(writing, worker):
                    batch = await _watch(
                        runtime, session, batch.id, screen, ended, working, upstreams, worker
                    )
                    worker.stop()
                    await working
        finally:
            working.cancel()
    return batch, batch.ended_at is None


async def _watch(
    runtime: Runtime,
    session: Session,
    batch_id: UUID,
    screen: Display,
    ended: asyncio.Event,
    working: asyncio.Task[None],
    upstreams: Upstreams,
    worker: Worker,
) -> Batch:
    """Show progress until the batch or the worker has ended."""
    gauge, room = Gauge(session, batch_id), _Room(runtime, worker)
    while True:
        room.check()
        over = working.done()
        try:
            batch, progress = await gauge.read()
            screen.show(_with_worker(progress, upstreams, worker))
            if batch.ended_at is not None or over or cannot_end(batch):
                return batch
            # A batch that a user has paused may be resumed soon.
            if batch.pause_rule is not None and not worker.holding():
                return batch
        except StoreUnavailable as error:
            if over:
                raise CommandError(
                    f"lost the database: {error}; no result is lost; run the same command again",
                    Exit.INTERRUPTED,
                ) from error
        waits = [working, asyncio.ensure_future(ended.wait())]
        await asyncio.wait(waits, timeout=_REFRESH, return_when=asyncio.FIRST_COMPLETED)
        waits[1].cancel()


def cannot_end(batch: Batch) -> bool:
    return batch.ended_at is None and batch.finalize_failures >= _FINALIZE_TRIES


def _with_worker(progress: DisplayedProgress, upstreams: Upstreams, worker: Worker) -> DisplayedProgress:
    """The progress with what only the process that does the work knows. `run` has one upstream."""
    trouble = worker.finalizer.trouble or worker.settler.trouble or progress.trouble or worker.relays.trouble
    return msgspec.structs.replace(progress, upstream=next(iter(upstreams.views()), None), trouble=trouble)


@dataclass(slots=True)
class _Room:
    """Ends the run if a full disk is not cleared for a while."""

    runtime: Runtime
    worker: Worker
    full_since: float | None = None

    def check(self) -> None:
        where, now = self._full(), time.monotonic()
        self.full_since = None if where is None else self.full_since or now
        if self.full_since is not None and now - self.full_since > _DISK_PATIENCE:
            raise CommandError(full_message(where or ""))

    def _full(self) -> str | None:
        """The full disk that the worker waits for, if there is one."""
        if says_full(self.worker.settler.trouble or ""):
            return str(self.runtime.server.data_dir) if self.runtime.server else "the database"
        return self.runtime.objects.location if says_full(self.worker.finalizer.trouble or "") else None


@contextmanager
def _stopped_by(writing: Writing | None, worker: Worker) -> Iterator[None]:
    """Stop the worker if the output cannot be written any more: nobody would read the answers."""

    def stop(_: Writing) -> None:
        worker.stop()

    if writing is None:
        yield
        return
    writing.add_done_callback(stop)
    try:
        yield
    finally:
        writing.remove_done_callback(stop)


class _Signals:
    """Ctrl-C waits for requests in flight, a second one stops at once."""

    def __init__(self, worker: Worker, screen: Display) -> None:
        self._worker = worker
        self._screen = screen
        self._count = 0

    def __enter__(self) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, self._received)

    def __exit__(self, *exc: object) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(name)

    def _received(self) -> None:
        self._count += 1
        if self._count == 1:
            self._screen.say("stopping: waiting for requests in flight; press Ctrl-C again to stop now")
        self._worker.stop()
