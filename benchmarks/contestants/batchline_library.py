"""Batchline's Python library, through its public API: items are streamed, and an app's worker runs them."""

import asyncio
import gc
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from batchline import Batchline
from batchline.model import ids
from batchline.store import migrate
from benchmarks.contestants.protocol import Handler, Payload

_UNKNOWN = ids.show(ids.BATCH, UUID(int=7 << 76))


class _BatchlineLibrary:
    def __init__(self, url: str) -> None:
        self._url = url
        self._folder = tempfile.mkdtemp(prefix="batchline-contest-")
        self._app = Batchline(url, data_dir=self._folder)

    async def install(self) -> None:
        await asyncio.to_thread(migrate.ensure, self._url)

    async def open(self) -> None:
        @self._app.operation
        async def handle(item: Payload) -> None:
            raise NotImplementedError

        self._handle = handle
        with suppress(LookupError):
            await self._app.batch(_UNKNOWN)

    async def accept(self, items: Sequence[Payload]) -> None:
        await self._app.submit(self._handle, iter(items))

    async def work(self, handler: Handler, concurrency: int | None, member: int) -> None:
        @self._app.operation(concurrency=concurrency)
        async def handle(item: Payload) -> None:
            await handler(item["nth"])

        # As `app.worker().run()` does, which cannot be called on a running loop.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        await self._app.worker().serve()


contestant = _BatchlineLibrary
