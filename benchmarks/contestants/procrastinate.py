"""Procrastinate: psycopg on uvloop, deferred in batches, many jobs at once in one worker, woken by NOTIFY."""

from collections.abc import Sequence

import procrastinate

from benchmarks.contestants.protocol import Handler, Payload

_DEFERRED_AT_ONCE = 1_000
_CONCURRENCY = 20


class _Procrastinate:
    def __init__(self, url: str) -> None:
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=20))
        self._handler: Handler | None = None

        @self._app.task(name="handle", queue="items")
        async def handle(nth: int, text: str) -> None:
            assert self._handler is not None
            await self._handler(nth)

        self._handle = handle

    async def install(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await self._app.open_async()

    async def accept(self, items: Sequence[Payload]) -> None:
        for start in range(0, len(items), _DEFERRED_AT_ONCE):
            await self._handle.batch_defer_async(*items[start : start + _DEFERRED_AT_ONCE])

    async def work(self, handler: Handler, concurrency: int | None, member: int) -> None:
        self._handler = handler
        async with self._app.open_async():
            await self._app.run_worker_async(
                queues=["items"], concurrency=concurrency or _CONCURRENCY, name=f"worker-{member}"
            )


contestant = _Procrastinate
