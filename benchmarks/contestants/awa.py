"""awa: Rust workers that call Python handlers, inserted by COPY, in the storage that `migrate` sets up.

Its other storage, which its operators switch to, accepts about four times as many items per second, and ran
about as many or fewer of them when both were tried here.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import awa

from benchmarks.contestants.protocol import Handler, Payload

_QUEUE = "items"
_CONCURRENCY = 200


@dataclass
class AwaItem:
    nth: int
    text: str


class _Awa:
    def __init__(self, url: str) -> None:
        # It refuses an address without a host, and then uses that of the query.
        self._client = awa.AsyncClient(url.replace("@/", "@localhost/", 1))

    async def install(self) -> None:
        await self._client.migrate()

    async def open(self) -> None:
        return

    async def accept(self, items: Sequence[Payload]) -> None:
        if len(items) == 1:
            await self._client.insert(AwaItem(**items[0]), queue=_QUEUE)
        else:
            await self._client.insert_many_copy([AwaItem(**item) for item in items], queue=_QUEUE)

    async def work(self, handler: Handler, concurrency: int | None, member: int) -> None:
        @self._client.task(AwaItem, queue=_QUEUE)
        async def handle(job: "awa.Job[AwaItem]") -> None:
            await handler(job.args.nth)

        await self._client.start([(_QUEUE, concurrency or _CONCURRENCY)])
        await asyncio.Event().wait()


contestant = _Awa
