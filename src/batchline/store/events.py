"""LISTEN: word of batch events, one NOTIFY each (LESSONS 2)."""

from collections.abc import AsyncIterator
from uuid import UUID

import psycopg

from batchline.store.session import StoreUnavailable, connect


async def notifications(url: str) -> AsyncIterator[tuple[str, UUID | None]]:
    """(kind, batch) of each event; the first is ("listening", None), once nothing can be missed."""
    try:
        async with await connect(url, "listener") as connection:
            await connection.execute("LISTEN batchline")
            yield "listening", None
            async for notification in connection.notifies():
                kind, _, batch_id = notification.payload.partition(" ")
                yield kind, UUID(batch_id)
    except psycopg.OperationalError as error:
        raise StoreUnavailable(str(error).strip() or type(error).__name__) from error
