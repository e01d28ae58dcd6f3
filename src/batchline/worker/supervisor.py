"""Restarts a worker's service after an unexpected error, and gives up when it keeps failing.

A service handles what it expects to go wrong, such as a database that is away. Anything else is a bug or a
broken database: a restart often helps, and a service that died unnoticed would leave a worker that looks
alive and does nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from batchline.worker.pause import Pause

MAX_FAILURES = 5
# A service that ran this long did not fail at what it failed at before.
_STABLE_AFTER = 60.0

_log = structlog.get_logger("batchline.worker")


class ServiceFailed(Exception):
    """A service failed several times in a row. The message is for a person."""


class Services:
    """Starts supervised services as tasks of one group. `on_failed` is called when one fails for good."""

    def __init__(self, tasks: asyncio.TaskGroup, on_failed: Callable[[], None]) -> None:
        self._tasks = tasks
        self._on_failed = on_failed

    def start(
        self, name: str, run: Callable[[], Awaitable[None]], on_failure: Callable[[], object] = lambda: None
    ) -> asyncio.Task[None]:
        return self._tasks.create_task(self.supervise(name, run, on_failure), name=name)

    async def supervise(
        self, name: str, run: Callable[[], Awaitable[None]], on_failure: Callable[[], object] = lambda: None
    ) -> None:
        try:
            await supervise(name, run, on_failure)
        except ServiceFailed:
            self._on_failed()
            raise


def first_failure(group: ExceptionGroup[Exception]) -> ServiceFailed | None:
    """The service that failed for good; the others of the group were cancelled because of it."""
    for error in group.exceptions:
        found = first_failure(error) if isinstance(error, ExceptionGroup) else error
        if isinstance(found, ServiceFailed):
            return found
    return None


async def supervise(
    name: str,
    run: Callable[[], Awaitable[None]],
    on_failure: Callable[[], object] = lambda: None,
    pause: Pause | None = None,
) -> None:
    """Run the service until it returns. `on_failure` repairs what an interrupted run may leave behind."""
    pause = pause or Pause(first=0.5, maximum=8.0)
    clock = asyncio.get_running_loop().time
    failures = 0
    while True:
        started = clock()
        try:
            return await run()
        except Exception as error:
            if clock() - started > _STABLE_AFTER:
                failures = 0
                pause.reset()
            failures += 1
            if failures == MAX_FAILURES:
                message = f"the worker's {name} failed {failures} times in a row, the last time with: {error}"
                raise ServiceFailed(message) from error
            _log.exception("service failed and is restarted", service=name, failures=failures)
        on_failure()
        await pause.wait()
