"""What an app keeps for each event loop that uses it: sessions and a listener. Connections are bound to the
loop that has opened them.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from batchline.app.first_results import FirstResults
from batchline.store.events import Event
from batchline.store.pool import Sessions
from batchline.worker.listener import Listener

_SESSIONS = 8


class EndNotice:
    """Of one who waits. What arrives after `clear` is not missed, also if it arrives before `wait`."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self.clear = self._arrived.clear
        self.set = self._arrived.set

    async def wait(self, seconds: float) -> None:
        """Until there is a notice, or the time is up."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return


class EndNotices:
    """Wakes those who wait for a batch that has ended, or may have: they look."""

    def __init__(self) -> None:
        self._waiting: defaultdict[UUID, list[EndNotice]] = defaultdict(list)

    def heard(self, event: Event) -> None:
        if event.kind in ("finished", "ended") and event.batch_id is not None:
            self._wake(event.batch_id)
        elif event.kind == "listening":
            # Earlier ones were missed.
            for batch_id in list(self._waiting):
                self._wake(batch_id)

    @contextmanager
    def expected(self, batch_id: UUID) -> Iterator[EndNotice]:
        notice = EndNotice()
        self._waiting[batch_id].append(notice)
        try:
            yield notice
        finally:
            waiting = self._waiting[batch_id]
            waiting.remove(notice)
            if not waiting:
                del self._waiting[batch_id]

    def _wake(self, batch_id: UUID) -> None:
        for notice in self._waiting.get(batch_id, ()):
            notice.set()


class LoopResources:
    """Lives on one event loop. A task closes it when the loop ends: `asyncio.run` cancels all tasks then."""

    def __init__(self, url: str) -> None:
        self.sessions = Sessions(url, maximum=_SESSIONS, streams=_SESSIONS)
        self._notices = EndNotices()
        self._first_results = FirstResults(self.sessions)
        self._url = url
        self._listening: asyncio.Task[None] | None = None
        self._keeper = asyncio.create_task(self._keep())

    def notices(self) -> EndNotices:
        """Listens from the first call on."""
        if self._listening is None:
            self._listening = asyncio.create_task(Listener(self._url, self._heard).run())
        return self._notices

    def first_results(self) -> FirstResults:
        """Listens from the first call on."""
        self.notices()
        return self._first_results

    def _heard(self, event: Event) -> None:
        self._notices.heard(event)
        self._first_results.heard(event)

    async def close(self) -> None:
        self._keeper.cancel()
        await asyncio.wait([self._keeper])

    async def _keep(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if self._listening is not None:
                self._listening.cancel()
                await asyncio.gather(self._listening, return_exceptions=True)
            await self._first_results.close()
            await self.sessions.close()


class Loops:
    """The resources of each loop, made when first used. Loops that have ended are forgotten."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._of: dict[asyncio.AbstractEventLoop, LoopResources] = {}

    def __len__(self) -> int:
        return len(self._of)

    def here(self) -> LoopResources:
        loop = asyncio.get_running_loop()
        found = self._of.get(loop)
        if found is None:
            for ended in [each for each in list(self._of) if each.is_closed()]:
                self._of.pop(ended, None)
            found = self._of[loop] = LoopResources(self._url)
        return found

    async def close(self) -> None:
        """Close those of all loops, each on its own."""
        mine = asyncio.get_running_loop()
        while self._of:
            loop, resources = self._of.popitem()
            if loop is mine:
                await resources.close()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(resources.close(), loop))
