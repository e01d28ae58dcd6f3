"""The service protocol: start, stop, wake and idle, which all parts of a worker have in common.

`Supervisor.start` starts a service: it calls `run` in a task, and after an unexpected error `repair` and
`run` again. Other services call `wake` when there may be work. `idle` is set while there is nothing to do: a
worker that drains waits until all services are idle. A worker that stops calls `stop`, waits until the
service is idle, and cancels `run`.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol


class Service:
    """Works whenever it is woken. A service with a loop of its own replaces `run`."""

    name = "service"

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There may be work. A service that replaces `run` must become idle again after it."""
        self.idle.clear()
        self._woken.set()

    def stop(self) -> None:
        """Take on nothing that could wait for another worker."""
        return

    def repair(self) -> None:
        """Clean up after an interrupted `run`."""
        return

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._work()
            finally:
                self._rest()

    async def _work(self) -> None:
        raise NotImplementedError

    @property
    def _busy(self) -> bool:
        """Whether something is under way apart from `_work`."""
        return False

    def _rest(self) -> None:
        """Become idle, unless there is something to do."""
        if not self._woken.is_set() and not self._busy:
            self.idle.set()


class HasIdle(Protocol):
    """A service, or anything else that must be idle before a worker has drained."""

    idle: asyncio.Event


def are_idle(parts: Iterable[HasIdle]) -> bool:
    return all(part.idle.is_set() for part in parts)


async def until_idle(parts: Callable[[], Iterable[HasIdle]]) -> None:
    """Wait until all are idle at the same moment. `parts` is called after each wait, because they change."""
    while (busy := next((part for part in parts() if not part.idle.is_set()), None)) is not None:
        await busy.idle.wait()
