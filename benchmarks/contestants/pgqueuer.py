"""PgQueuer: asyncpg on uvloop, enqueued in lists, dequeued and acknowledged in batches."""

import json
from collections.abc import Sequence

import asyncpg
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries
from pgqueuer.models import Job

from benchmarks.contestants.protocol import Handler, Payload

_ENQUEUED_AT_ONCE = 10_000
_BATCH = 1_000


class _PgQueuer:
    def __init__(self, url: str) -> None:
        self._url = url

    async def install(self) -> None:
        await Queries(AsyncpgDriver(await asyncpg.connect(self._url))).install()

    async def open(self) -> None:
        self._queries = Queries(AsyncpgDriver(await asyncpg.connect(self._url)))

    async def accept(self, items: Sequence[Payload]) -> None:
        for start in range(0, len(items), _ENQUEUED_AT_ONCE):
            chunk = [json.dumps(item).encode() for item in items[start : start + _ENQUEUED_AT_ONCE]]
            await self._queries.enqueue(["handle"] * len(chunk), chunk, [0] * len(chunk))

    async def work(self, handler: Handler, concurrency: int | None, member: int) -> None:
        async with asyncpg.create_pool(self._url, min_size=4, max_size=8) as pool:
            queue = PgQueuer(AsyncpgPoolDriver(pool))

            @queue.entrypoint("handle")
            async def handle(job: Job) -> None:
                await handler(json.loads(job.payload or b"")["nth"])

            if concurrency is None:
                await queue.run(batch_size=_BATCH)
            else:
                # It requires at least two batches in flight.
                await queue.run(batch_size=concurrency // 2, max_concurrent_tasks=concurrency)


contestant = _PgQueuer
