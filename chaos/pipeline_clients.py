"""Clients that submit pipelines through the Python library, and repeat it until it is confirmed.

Each submits in a transaction of its own, with a row for the order. So an order becomes one batch, although
the answer to a commit may be lost.
"""

import asyncio
from pathlib import Path
from uuid import UUID

import psycopg

from batchline import DatabaseUnavailable
from chaos.pipeline_app import StageItem, pipeline_app
from chaos.schedule import PipelineOrder

_PAUSE = 0.3
_ANSWER_LIMIT = 10.0
_ORDERS = "CREATE TABLE IF NOT EXISTS pipeline_orders (name text PRIMARY KEY, batch_id uuid)"


class PipelineClients:
    def __init__(self, database: str, data_dir: Path) -> None:
        self._database = database
        self._app = pipeline_app(database, data_dir)

    async def close(self) -> None:
        await self._app.close()

    async def submit(self, order: PipelineOrder) -> UUID:
        while True:
            try:
                async with asyncio.timeout(_ANSWER_LIMIT):
                    return await self._submit(order)
            except (TimeoutError, psycopg.OperationalError, psycopg.InternalError, DatabaseUnavailable):
                # Any other error of the library is a finding.
                await asyncio.sleep(_PAUSE)

    async def _submit(self, order: PipelineOrder) -> UUID:
        async with await psycopg.AsyncConnection.connect(self._database) as connection:
            await connection.execute(_ORDERS)
            named = {"name": order.name}
            await connection.execute(
                "INSERT INTO pipeline_orders VALUES (%(name)s) ON CONFLICT DO NOTHING", named
            )
            found = await connection.execute(
                "SELECT batch_id FROM pipeline_orders WHERE name = %(name)s FOR UPDATE", named
            )
            row = await found.fetchone()
            assert row is not None
            if row[0] is not None:
                return UUID(str(row[0]))
            batch = await self._app.submit(
                self._app.operations["plan"],
                [item.text for item in first_items(order)],
                key=lambda text: StageItem("plan", text).key,
                connection=connection,
            )
            await connection.execute(
                "UPDATE pipeline_orders SET batch_id = %(batch)s WHERE name = %(name)s",
                {**named, "batch": batch.uuid},
            )
        return batch.uuid


def first_items(order: PipelineOrder) -> list[StageItem]:
    """The items that a client submits."""
    return [StageItem("plan", f"{order.name}/{number}") for number in range(order.items)]
