"""Chancy: psycopg on uvloop, pushed in batches, its asyncio executor, eager polling, woken by NOTIFY."""

import logging
from collections.abc import Sequence

from chancy import Chancy, Job, Queue, Worker

from benchmarks.contestants.protocol import Handler, Payload, Running

_PUSHED_AT_ONCE = 1_000
_CONCURRENCY = 500
_FUNCTION = "benchmarks.contestants.chancy.handle"


async def handle(*, nth: int, text: str) -> None:
    await Running.handler(nth)


class _Chancy:
    def __init__(self, url: str) -> None:
        # It logs every job; logging is not measured here.
        logging.getLogger("chancy").setLevel(logging.WARNING)
        self._chancy = Chancy(url, log=logging.getLogger("chancy"))

    async def install(self) -> None:
        async with self._chancy:
            await self._chancy.migrate()

    async def open(self) -> None:
        await self._chancy.__aenter__()

    async def accept(self, items: Sequence[Payload]) -> None:
        jobs = [Job(func=_FUNCTION, queue="items", kwargs=dict(item)) for item in items]
        async for _ in self._chancy.push_many(jobs, batch_size=_PUSHED_AT_ONCE):
            pass

    async def work(self, handler: Handler, concurrency: int | None, member: int) -> None:
        async with self._chancy as chancy:
            queue = Queue(
                "items",
                concurrency=concurrency or _CONCURRENCY,
                executor=Chancy.Executor.Async,
                eager_polling=True,
            )
            await chancy.declare(queue, upsert=True)
            async with Worker(chancy) as worker:
                await worker.wait_for_shutdown()


contestant = _Chancy
