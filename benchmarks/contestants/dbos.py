"""DBOS queues: asynchronous workflows, enqueued by a client, a thousand per transaction."""

import asyncio
from collections.abc import Sequence

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions

from benchmarks.contestants.protocol import Handler, Payload, Running

_ENQUEUED_AT_ONCE = 1_000
_QUEUE = "items"


class _Dbos:
    def __init__(self, url: str) -> None:
        self._url = url.replace("postgresql://", "postgresql+psycopg://")

    async def install(self) -> None:
        DBOS(config=self._config("install"))
        DBOS.launch()
        DBOS.destroy()

    async def open(self) -> None:
        self._client = DBOSClient(system_database_url=self._url, application_name="contest")
        self._engine = sqlalchemy.create_engine(self._url)

    async def accept(self, items: Sequence[Payload]) -> None:
        options: EnqueueOptions = {"queue_name": _QUEUE, "workflow_name": "handle"}
        for start in range(0, len(items), _ENQUEUED_AT_ONCE):
            with self._engine.begin() as connection:
                for item in items[start : start + _ENQUEUED_AT_ONCE]:
                    self._client.enqueue_in_transaction(connection, options, item["nth"], item["text"])

    async def work(self, handler: Handler, concurrency: int | None, member: int) -> None:
        # Two workers at once need different names; a restarted one keeps its name.
        DBOS(config=self._config("local" if member == 0 else f"local-{member}"))

        @DBOS.workflow(name="handle")
        async def handle(nth: int, text: str) -> None:
            await Running.handler(nth)

        DBOS.launch()
        await DBOS.register_queue_async(_QUEUE, worker_concurrency=concurrency)
        await asyncio.Event().wait()

    def _config(self, executor: str) -> DBOSConfig:
        return {
            "name": "contest",
            "system_database_url": self._url,
            "application_version": "1",
            "executor_id": executor,
            "log_level": "WARNING",
        }


contestant = _Dbos
