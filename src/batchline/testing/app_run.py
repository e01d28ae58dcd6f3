"""Runs an app in a test: what is due, in the loop of the test, until nothing is due any more."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from batchline.app.app_worker import worker_settings, working
from batchline.app.batchline import Batchline
from batchline.app.core import AppCore
from batchline.store import stopped_clock
from batchline.store.stopped_clock import StoppedClock
from batchline.testing.stopped_executor import StoppedExecutor
from batchline.worker.worker import Worker

_LOOK_EVERY = 0.003


@asynccontextmanager
async def running(app: Batchline, database: str | None = None) -> AsyncIterator["AppRun"]:
    """Use the app in a test: on this database meanwhile, if one is given, with its files in a folder that is
    deleted afterwards. The app is closed at the end."""
    core = app._core
    before = core.location
    with tempfile.TemporaryDirectory(prefix="batchline-test-") as folder:
        if database is not None:
            await core.close()
            core.location = replace(before, database=database, data_dir=Path(folder), objects=None)
        try:
            async with core.session() as session:
                clock = await stopped_clock.stopped(session)
            yield AppRun(core, clock)
        finally:
            await core.close()
            core.location = before


class AppRun:
    """The time of retries, parked items, deadlines and schedules stands still. `advance` moves it."""

    def __init__(self, core: AppCore, clock: StoppedClock) -> None:
        self._core = core
        self._clock = clock

    async def drain(self, *, timeout: float = 60.0) -> int:
        """Run items until nothing is due. Returns how many attempts and polls of parked items that were.

        Raises TimeoutError if this takes longer than `timeout` seconds, by a real clock.
        """
        async with asyncio.timeout(timeout):
            await self._release_schedules()
            claimed = await self._work()
            # What a worker has done last, such as a call after the end of a batch, may have submitted more,
            # and a schedule may be due several times.
            while await self._release_schedules() or not await self._quiet():
                claimed += await self._work()
        return claimed

    async def advance(self, seconds: float) -> None:
        """Let time pass at once: `drain` runs what has come due by then."""
        if seconds < 0:
            raise ValueError("time cannot go back")
        self._clock.seconds += seconds
        async with self._core.session() as session:
            await stopped_clock.release(session, self._clock)
            await stopped_clock.advance_deadlines(session, self._core.location.tenant, seconds)

    async def _work(self) -> int:
        core = self._core
        core.catalog.check()
        opened, operations = await core.opened(), list(core.catalog)
        async with working(
            opened,
            core,
            operations,
            worker_settings(operations),
            around_executor=lambda executor: StoppedExecutor(executor, self._clock),
        ) as worker:
            await self._until_quiet(worker)
            return worker.claimed

    async def _until_quiet(self, worker: Worker) -> None:
        running = asyncio.create_task(worker.run())
        try:
            while not running.done() and not await self._quiet():
                await asyncio.wait([running], timeout=_LOOK_EVERY)
        except asyncio.CancelledError:
            worker.stop()
            raise
        finally:
            worker.stop()
            await running

    async def _release_schedules(self) -> bool:
        async with self._core.session() as session:
            return await stopped_clock.release_schedules(session, self._core.location.tenant, self._clock)

    async def _quiet(self) -> bool:
        core = self._core
        keys, schedules = [each.url for each in core.catalog], [each.name for each in core.schedules]
        async with core.session() as session:
            return await stopped_clock.quiet(session, core.location.tenant, keys, schedules)
