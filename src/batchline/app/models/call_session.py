"""The calls of a client, from any event loop: they run on the loop of a background thread, so that code which
blocks the caller's loop does not stop requests in flight, or the worker's lease.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from batchline.app.core import AppCore, AppLocation
from batchline.app.models.call_batch import CallKind
from batchline.app.models.call_lane import CallLane
from batchline.config.settings import UpstreamSettings
from batchline.model import RunSettings

Returned = TypeVar("Returned")


class CallSession:
    """Nothing is opened before the first call."""

    def __init__(
        self, location: AppLocation, name: str, run: RunSettings, upstream: UpstreamSettings
    ) -> None:
        self._core = AppCore(location)
        self._name = name
        self._run = run
        self._upstream = upstream
        self._lock = threading.Lock()
        self._lanes: dict[CallKind, asyncio.Task[CallLane]] = {}
        self._closed = False

    async def call(self, model: str, url: str, body: bytes) -> bytes:
        """The output line of a request. If the caller is cancelled, the request still runs."""
        if self._closed:
            raise RuntimeError("the client is closed")
        return await self._elsewhere(self._call(CallKind(self._name, model, url), body))

    async def close(self, *, finish: bool) -> None:
        """`finish`: let the batches end, and wait for that."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._core.background.loop is not None:
            await self._elsewhere(self._close(finish))
        await self._core.close()

    async def _elsewhere(self, act: Coroutine[Any, Any, Returned]) -> Returned:
        loop = self._core.background.started()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(act, loop))

    async def _call(self, kind: CallKind, body: bytes) -> bytes:
        lane = await asyncio.shield(self._lane(kind))
        return await lane.call(body)

    def _lane(self, kind: CallKind) -> "asyncio.Task[CallLane]":
        found = self._lanes.get(kind)
        # One that could not be opened is tried again.
        if found is None or (found.done() and found.exception() is not None):
            found = self._lanes[kind] = asyncio.create_task(self._open(kind))
        return found

    async def _open(self, kind: CallKind) -> CallLane:
        return await CallLane.opened(await self._core.opened(), kind, self._run, self._upstream)

    async def _close(self, finish: bool) -> None:
        opened = await asyncio.gather(*self._lanes.values(), return_exceptions=True)
        lanes = [lane for lane in opened if isinstance(lane, CallLane)]
        await asyncio.gather(*(lane.close(finish=finish) for lane in lanes))
