"""Starts and stops the services of a worker; restarts one after an unexpected error, up to five times.

A service handles the errors that it expects, such as an unreachable database. Anything else is a bug or a
broken database: a restart often helps, and a service that died unnoticed would leave a worker that looks
alive and does nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog

from batchline.worker.pause import Pause
from batchline.worker.service import Service
from batchline.worker.tasks import cancel_all, first

MAX_FAILURES = 5
# A service that ran this long did not fail at what it failed at before.
_STABLE_AFTER = 60.0

_log = structlog.get_logger("batchline.worker")


class ServiceFailed(Exception):
    """A service failed several times in a row. The message is for a person."""


class Supervisor:
    """Runs services as tasks of one group. `abort` is set when one fails for good; once it is set, a stop
    waits for nothing."""

    def __init__(self, abort: asyncio.Event) -> None:
        self._abort = abort
        self._tasks: dict[Service, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises ServiceFailed if a service keeps failing; the other services are cancelled then."""
        try:
            async with asyncio.TaskGroup() as self._group:
                yield
        except ExceptionGroup as group:
            if (failed := _first_failure(group)) is None:
                raise
            raise failed from group

    def start(self, *services: Service) -> None:
        assert self._group is not None, "start services inside `running`"
        for service in services:
            task = self._group.create_task(self._supervised(service), name=service.name)
            self._tasks[service] = task
            task.add_done_callback(partial(self._ended, service))

    async def stop(self, *services: Service, patience: float | None = None) -> None:
        """Let them finish what they have begun, for so many seconds at most, and end them."""
        for service in services:
            service.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await first(self._abort.wait(), self._finished(*services))
        await cancel_all([self._tasks[service] for service in services if service in self._tasks])

    def cancel(self, service: Service) -> None:
        """End a service that has nothing to finish."""
        if service in self._tasks:
            self._tasks[service].cancel()

    def _ended(self, service: Service, _: asyncio.Task[None]) -> None:
        del self._tasks[service]

    async def _finished(self, *services: Service) -> None:
        for service in services:
            if (task := self._tasks.get(service)) is not None:
                await first(service.idle.wait(), asyncio.wait([task]))

    async def _supervised(self, service: Service) -> None:
        try:
            await supervise(service)
        except ServiceFailed:
            self._abort.set()
            raise


def _first_failure(group: ExceptionGroup[Exception]) -> ServiceFailed | None:
    """The service that failed for good; the others of the group were cancelled because of it."""
    for error in group.exceptions:
        found = _first_failure(error) if isinstance(error, ExceptionGroup) else error
        if isinstance(found, ServiceFailed):
            return found
    return None


async def supervise(service: Service, pause: Pause | None = None) -> None:
    """Run the service until it returns."""
    pause = pause or Pause(first=0.5, maximum=8.0)
    clock = asyncio.get_running_loop().time
    failures = 0
    while True:
        started = clock()
        try:
            return await service.run()
        except Exception as error:
            if clock() - started > _STABLE_AFTER:
                failures = 0
                pause.reset()
            failures += 1
            if failures == MAX_FAILURES:
                failed = f"the worker's {service.name} failed {failures} times in a row"
                raise ServiceFailed(f"{failed}, the last time with: {error}") from error
            _log.exception("service failed and is restarted", service=service.name, failures=failures)
        service.repair()
        await pause.wait()
