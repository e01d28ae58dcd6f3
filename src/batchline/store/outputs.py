"""The output and error lines of a batch in input order, as bytes straight from COPY.

Lines are not parsed on the way, and a line that never ran has no row: its error line is composed in SQL. Also
works while the batch runs, with the results so far. Lines are read by ranges of line numbers, each in a short
transaction, because a snapshot that stays open slows down every claim and settle.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Literal, LiteralString, Protocol
from uuid import UUID

import msgspec
from psycopg import errors, sql
from psycopg.abc import PQGen
from psycopg.generators import fetch_many
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn
from psycopg.waiting import Wait

from batchline.model import Batch, File
from batchline.store import batches
from batchline.store.session import Session, StoreConnection, StoreUnavailable
from batchline.store.statements import statement

Which = Literal["output", "errors"]

NEVER_RUN = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed: the batch was cancelled.",
}

# Larger blocks do not stay in the processor's cache: 512 KiB take a third more processor time.
_BLOCK = 128 * 1024
# Bytes that one transaction reads, about, and at most unless one line alone is larger. PostgreSQL sorts the
# lines of several lanes; that many fit into its work_mem of 4 MB.
_RANGE = 2 * 2**20
_MAX_KEPT = 4 * _RANGE
# Line numbers. A range with few lines in it is read as quickly as a scan goes.
_MAX_WIDTH = 2**20
_SILENCE = 60.0
_QUOTE = b"\x01"
_CONTENTION = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
_CONTROL_TO_SPACE = bytes.maketrans(bytes(range(32)), b" " * 32)


class BatchNotFound(Exception):
    """There is no such batch."""


class FileMissing(Exception):
    """There is no such file, or it has no lines."""


class Contended(StoreUnavailable):
    """Another transaction was in the way, so nothing was done. Trying again at once may help."""


class OutputLane(msgspec.Struct, frozen=True):
    """Where one lane's lines lie; `ending` is the code of those that never ran, if any can be."""

    id: int
    file_no: int
    lane_no: int
    ending: str | None


class _PageTooLarge(Exception):
    """A range of lines does not fit into memory. Leaving the COPY cancels it."""


class LineBlocks:
    """Lines as blocks of bytes; `count` of them are in the ranges that have been passed on so far.

    Each range of line numbers is read in one short transaction, into memory, and only then passed on: a slow
    reader holds no snapshot. Meanwhile the next range is read, and no more than that one. A range has about
    `_RANGE` bytes, judged by the one before it. If it turns out to be much larger, it is read again in
    smaller parts.
    """

    def __init__(self, session: Session, source: "_Source", last: int) -> None:
        self._session = session
        self._source = source
        self._last = last
        self.count = 0

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._blocks()

    async def _blocks(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._ranges()) as ranges:
            ahead = asyncio.create_task(_next(ranges))
            try:
                while (found := await ahead) is not None:
                    ahead = asyncio.create_task(_next(ranges))
                    self.count += found.lines
                    for block in found.blocks:
                        yield block
            finally:
                # The generator can be closed only when nobody waits for it.
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _ranges(self) -> AsyncGenerator["_Range", None]:
        after, width = 0, 1
        while after < self._last:
            until = min(after + width, self._last)
            try:
                found = await self._copied(after, until)
            except _PageTooLarge:
                width = max(1, (until - after) // 8)
                continue
            await self._source.passed(self._session, after, until)
            yield found
            after = until
            width = max(1, min(4 * width, width * _RANGE // max(found.size, 1), _MAX_WIDTH))

    async def _copied(self, after: int, until: int) -> "_Range":
        """The lines of a range. Raises _PageTooLarge if they do not fit into memory and can be divided."""
        blocks: list[bytes] = []
        size, count, ended = 0, 0, False
        async with (
            self._session.open_ended() as connection,
            connection.cursor() as cursor,
            cursor.copy(self._source.query(after, until)),
        ):
            while not ended:
                # A stream that is never short of rows would not let others use the event loop.
                await asyncio.sleep(0)
                rows, ended = await _rows(connection)
                blocks.append(_joined(rows))
                size, count = size + len(blocks[-1]), count + len(rows)
                if size > _MAX_KEPT and until - after > 1:
                    raise _PageTooLarge
        return _Range(blocks, size, count)


class _Range(msgspec.Struct, frozen=True):
    """The lines of a range of line numbers."""

    blocks: list[bytes]
    size: int
    lines: int


async def _next(ranges: AsyncGenerator[_Range, None]) -> _Range | None:
    return await anext(ranges, None)


def _joined(rows: Sequence[memoryview]) -> bytes:
    block = b"".join(rows)
    return b"".join(map(_unquoted, rows)) if _QUOTE in block else block


async def _rows(connection: StoreConnection) -> tuple[list[memoryview], bool]:
    try:
        async with asyncio.timeout(_SILENCE):
            return await connection.wait(_receive(connection.pgconn))
    except (TimeoutError, asyncio.CancelledError):
        # A COPY that is left in mid-stream must be read to its end, but a silent server sends none.
        connection.pgconn.finish()
        raise


async def lines(session: Session, batch_id: UUID, which: Which) -> LineBlocks:
    """The completed lines, or all others that have ended, in input order."""
    lanes = await find_lanes(session, batch_id)
    never_run = which == "errors" and lanes[0].ending is not None
    ((last,),) = await session.rows(statement("last_line"), {"batch": batch_id, "never_run": never_run})
    if never_run:
        return LineBlocks(session, _ErrorLines(batch_id, lanes, session.schema), last)
    return LineBlocks(session, _ResultLines(which, lanes, session.schema), last)


class _Source(Protocol):
    def query(self, after: int, until: int) -> sql.Composed:
        """The COPY of the lines in a range of line numbers."""
        ...

    async def passed(self, session: Session, after: int, until: int) -> None:
        """The range has been read."""
        ...


class _ResultLines:
    """Lines that have a result of one outcome."""

    def __init__(self, which: Which, lanes: Sequence[OutputLane], schema: str) -> None:
        self._copy = sql.SQL(statement("stream_results").text_in(schema))
        self._outcome = "completed" if which == "output" else "failed"
        self._lanes = _any_of([lane.id for lane in lanes])

    def query(self, after: int, until: int) -> sql.Composed:
        return self._copy.format(any_lane=self._lanes, after=after, until=until, outcome=self._outcome)

    async def passed(self, session: Session, after: int, until: int) -> None:
        return None


class _ErrorLines:
    """Lines that failed, and lines that never ran in a batch that has ended."""

    def __init__(self, batch_id: UUID, lanes: Sequence[OutputLane], schema: str) -> None:
        ending = lanes[0].ending
        assert ending is not None, "no line of this batch can have been left out"
        # What all error lines have in common is made here, so that the JSON is right.
        error = msgspec.json.encode({"code": ending, "message": NEVER_RUN[ending]}).decode()
        self._copy = sql.SQL(statement("stream_errors").text_in(schema))
        self._lanes = lanes
        self._cursors = [0] * len(lanes)
        self._before = f'{{"id":"batch_req_{batch_id.hex}_'
        self._behind = f',"response":null,"error":{error}}}'

    def query(self, after: int, until: int) -> sql.Composed:
        return self._copy.format(
            lanes=_array("bigint", [lane.id for lane in self._lanes]),
            lane_nos=_array("integer", [lane.lane_no for lane in self._lanes]),
            cursors=_array("integer", self._cursors),
            file=self._lanes[0].file_no,
            after=after,
            until=until,
            before=self._before,
            behind=self._behind,
        )

    async def passed(self, session: Session, after: int, until: int) -> None:
        lane_nos = [lane.lane_no for lane in self._lanes]
        params = {"file_no": self._lanes[0].file_no, "lane_nos": lane_nos, "cursors": self._cursors}
        rows = await session.rows(statement("next_cursors"), {**params, "after": after, "until": until})
        self._cursors = [cursor for (cursor,) in rows]


def _any_of(lanes: Sequence[int]) -> sql.Composed:
    """What a lane's id must be equal to.

    A single lane is no array: then PostgreSQL knows that the primary key has the lines in order, and sorts
    nothing.
    """
    if len(lanes) == 1:
        return sql.Composed([sql.Literal(lanes[0])])
    return sql.SQL("ANY ({})").format(_array("bigint", lanes))


def _array(kind: LiteralString, values: Sequence[int]) -> sql.Composed:
    return sql.SQL("{}::" + kind + "[]").format(list(values))


async def find_lanes(session: Session, batch_id: UUID) -> list[OutputLane]:
    rows = await session.rows(statement("batch_lanes"), {"batch": batch_id})
    if not rows:
        raise BatchNotFound(f"no batch {batch_id}")
    return [OutputLane(*row) for row in rows]


async def finish(
    session: Session,
    worker_id: UUID,
    batch_id: UUID,
    *,
    output: File | None,
    errors: File | None,
    summary: dict[str, object],
    event_id: UUID,
    finalizing_at: datetime,
) -> Batch | None:
    """End the batch as `batches.finish` does, and raise Contended for lock conflicts."""
    try:
        return await batches.finish(
            session,
            worker_id,
            batch_id,
            output=output,
            errors=errors,
            summary=summary,
            event_id=event_id,
            finalizing_at=finalizing_at,
        )
    except StoreUnavailable as error:
        if isinstance(error.__cause__, _CONTENTION):
            raise Contended(str(error)) from error
        raise


async def garbage(
    session: Session, found: Sequence[tuple[str, UUID | None, datetime]], older_than: timedelta
) -> list[str]:
    """Of the objects found (key, batch, last change), the keys of those that nobody needs."""
    rows = await session.rows(
        statement("garbage_objects"),
        {
            "keys": [key for key, _, _ in found],
            "batches": [batch_id for _, batch_id, _ in found],
            "modified": [modified for _, _, modified in found],
            "older_than": older_than,
        },
    )
    return [key for (key,) in rows]


def _receive(pgconn: PGconn) -> PQGen[tuple[list[memoryview], bool]]:
    """Rows until they make a block, and whether that was the end.

    Goes through the event loop only when nothing has come, where `async for` over psycopg's copy goes
    through half of its machinery for each row: 1.7 s of processor time for a million rows instead of 3.1 s.
    """
    rows: list[memoryview] = []
    size, waiting = 0, False
    while size < _BLOCK:
        length, row = pgconn.get_copy_data(1)
        if length < 0:
            yield from _conclude(pgconn)
            return rows, True
        if length > 0:
            rows.append(row)
            size += length
            waiting = False
        else:
            if waiting:
                yield Wait.R
            pgconn.consume_input()
            waiting = True
    return rows, False


def _conclude(pgconn: PGconn) -> PQGen[None]:
    """What the server says after the last row: that this was all, or what went wrong."""
    for result in (yield from fetch_many(pgconn)):
        if result.status != ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)


def _unquoted(row: memoryview) -> bytes:
    """A row as one line, whatever is in it.

    COPY has quoted a row that holds a line break or one of our two marks. JSON allows them between values
    only, where a space is as good; and one item must stay one line.
    """
    line = bytes(row)
    if not line.startswith(_QUOTE):
        return line
    return line[1:-2].replace(_QUOTE * 2, _QUOTE).translate(_CONTROL_TO_SPACE) + b"\n"
