"""LISTEN: word of batch events, one NOTIFY each (LESSONS 2)."""

from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import psycopg
from psycopg import sql

from batchline.model import Claim, Item, RunSettings
from batchline.store.errors import translate
from batchline.store.session import connect, run
from batchline.store.statements import statement


class Handover(msgspec.Struct, frozen=True):
    """The first lines of a batch, claimed for a worker that stood by, in the commit that made the batch."""

    worker_id: UUID
    # Which crew of the worker stood by, and when it said so, by the worker's clock.
    post: int
    said: float
    claim: Claim
    items: list[Item]


class Event(msgspec.Struct, frozen=True):
    kind: str
    batch_id: UUID | None = None
    # What was handed over, as it was told.
    told: str = ""

    def handover(self) -> Handover:
        """Of an event of the kind `handed`."""
        assert self.batch_id is not None
        worker_id, span_id, lane_id, details = self.told.split(" ", 3)
        told = _decode(details)
        claim = Claim(
            span_id=int(span_id),
            lane_id=int(lane_id),
            batch_id=self.batch_id,
            attempt=1,
            task_id=None,
            size=told.size,
            url=told.url,
            model=told.model,
            key=told.key,
            seconds_left=told.seconds_left,
            settings=told.settings,
        )
        items = [
            Item(claim, ordinal, line_no, custom_id.encode(), body.encode())
            for ordinal, line_no, custom_id, body in told.lines
        ]
        return Handover(UUID(worker_id), told.post, told.said, claim, items)


class _Details(msgspec.Struct):
    """As create_batch.sql writes them."""

    post: int
    said: float
    size: int
    url: str
    model: str
    key: str
    seconds_left: float
    settings: RunSettings
    lines: list[tuple[int, int, str, str]]


def event_of(payload: str) -> Event:
    kind, batch_id, *told = payload.split(" ", 2)
    return Event(kind, UUID(batch_id), *told)


_decode = msgspec.json.Decoder(_Details).decode


async def notifications(url: str, channel: str) -> AsyncIterator[Event]:
    """Each event, of all batches and of this channel; the first is `listening`, once nothing can be missed.

    If the connection goes to the database itself, `hearing` comes next: it holds the channel's lock, as long
    as it lives, by which others can tell that somebody hears them.
    """
    try:
        async with await connect(url, "listener") as connection:
            await connection.execute(sql.SQL("LISTEN batchline; LISTEN {}").format(sql.Identifier(channel)))
            pid = connection.info.backend_pid
            held = await run(connection, statement("hold_channel"), {"channel": channel, "pid": pid})
            yield Event("listening")
            if held:
                yield Event("hearing")
            async for notification in connection.notifies():
                yield event_of(notification.payload)
    except psycopg.Error as error:
        raise translate(error) from error
