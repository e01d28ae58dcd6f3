"""Batchline: its worker with an executor that calls the handler, a file of lines, and a batch over it."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import msgspec

from batchline.batches.output import answered_line
from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Fence
from batchline.files.ingest import InputSource, ingest
from batchline.files.objects import Objects
from batchline.model import DEFAULT_TENANT, Completed, Item, RunSettings, Verdict
from batchline.model.ids import new_id
from batchline.store import batches, migrate
from batchline.store.batches import NewBatch
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from benchmarks.contestants.protocol import Handler, Payload

_CONCURRENCY = 64


class _Body(msgspec.Struct):
    nth: int


class HandlerExecutor:
    """Executor that calls the handler and answers every item with null."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._decode = msgspec.json.Decoder(_Body).decode

    def fenced_by(self, fence: Fence) -> None:
        """Not needed: items run at once."""

    async def run(self, item: Item) -> Verdict:
        await self._handler(self._decode(item.body).nth)
        return Completed(item, 200, answered_line(item, 200, item.idempotency_key, b"null"))

    def wind_down(self) -> None:
        pass

    async def close(self) -> None:
        pass


def as_lines(items: Sequence[Payload]) -> bytes:
    encode = msgspec.json.Encoder().encode
    return b"".join(
        b'{"custom_id":"item-%d","method":"POST","url":"/v1/chat/completions","body":%b}\n'
        % (item["nth"], encode({"model": "handler", **item}))
        for item in items
    )


class _Batchline:
    def __init__(self, url: str) -> None:
        self._url = url
        self._file: UUID | None = None

    async def install(self) -> None:
        await asyncio.to_thread(migrate.ensure, self._url)

    async def open(self) -> None:
        self._session = Session(self._url, "benchmark")
        await batches.get(self._session, new_id())

    async def accept(self, items: Sequence[Payload]) -> None:
        """Write the items as lines in memory, and ingest them: the others also start from Python objects.

        A repeated single item becomes a new batch over the same file.
        """
        if len(items) > 1 or self._file is None:
            self._file = await self._take_in(items)
        new = NewBatch(new_id(), DEFAULT_TENANT, self._file, "24h", 86_400.0, RunSettings())
        await batches.create(self._session, new)

    async def _take_in(self, items: Sequence[Payload]) -> UUID:
        source = InputSource("items", [as_lines(items)])
        return (await ingest(self._url, [source], tenant=DEFAULT_TENANT, filename="items.jsonl")).id

    async def work(self, handler: Handler, concurrency: int | None, member: int) -> None:
        settings = WorkerSettings(concurrency=concurrency or _CONCURRENCY)
        with tempfile.TemporaryDirectory(prefix="batchline-contest-") as folder:
            objects = Objects.at(Path(folder))
            await Worker(self._url, HandlerExecutor(handler), objects, settings, Scope()).run()


contestant = _Batchline
