"""Batch events by LISTEN.

There is one notification per batch event: one per line would slow down every commit.
"""

from collections.abc import AsyncGenerator
from uuid import UUID

import msgspec
import psycopg
from psycopg import sql

from batchline.store.errors import translate
from batchline.store.session import connect


class Event(msgspec.Struct, frozen=True):
    kind: str
    batch_id: UUID | None = None


def event_of(payload: str) -> Event:
    kind, batch_id = payload.split(" ", 1)
    return Event(kind, UUID(batch_id))


async def notifications(url: str) -> AsyncGenerator[Event, None]:
    """Yield the events of all batches. The first is `listening`; from then on no event is missed."""
    try:
        async with await connect(url, "listener") as connection:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(connection.schema)))
            yield Event("listening")
            async for notification in connection.notifies():
                yield event_of(notification.payload)
    except psycopg.Error as error:
        raise translate(error) from error
