"""Oban for Python: psycopg on uvloop, enqueued in lists, many jobs at once in one queue, woken by NOTIFY."""

import asyncio
from collections.abc import Sequence

from oban import Oban, job
from oban.schema import install

from benchmarks.contestants.protocol import Handler, Payload, Running

_ENQUEUED_AT_ONCE = 1_000
_LIMIT = 100


@job(queue="items")
async def handle(nth: int, text: str) -> None:
    await Running.handler(nth)


class _Oban:
    def __init__(self, url: str) -> None:
        self._url = url

    async def install(self) -> None:
        pool = await Oban.create_pool(dsn=self._url)
        await install(pool)
        await pool.close()

    async def open(self) -> None:
        self._oban = Oban(pool=await Oban.create_pool(dsn=self._url))

    async def accept(self, items: Sequence[Payload]) -> None:
        for start in range(0, len(items), _ENQUEUED_AT_ONCE):
            await self._oban.enqueue_many(
                [handle.new(**item) for item in items[start : start + _ENQUEUED_AT_ONCE]]
            )

    async def work(self, handler: Handler, concurrency: int | None, member: int) -> None:
        pool = await Oban.create_pool(dsn=self._url, max_size=10)
        async with Oban(pool=pool, queues={"items": concurrency or _LIMIT}):
            await asyncio.Event().wait()


contestant = _Oban
