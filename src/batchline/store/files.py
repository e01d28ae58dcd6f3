"""Files: get, list, find by content, delete, and ingest in one transaction."""

import struct
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any, Literal
from uuid import UUID

import msgspec
import psycopg
from psycopg.abc import Buffer, PQGen
from psycopg.copy import AsyncLibpqWriter
from psycopg.generators import copy_to
from psycopg.pq.abc import PGconn
from psycopg.types.json import Jsonb
from psycopg.waiting import WAIT_W

from batchline.model import ContentError, File
from batchline.store import idempotency
from batchline.store.arrays import TextArray
from batchline.store.idempotency import IdempotencyKey
from batchline.store.session import Row, Session, StoreConnection, run
from batchline.store.statements import statement

# PostgreSQL's binary COPY format: a signature, flags and the length of a header extension. Then each row: its
# number of fields, and each field as length and content. At the end, -1 instead of a number of fields.
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
# A row of copy_lines.sql: the number of fields (six) and the file number; then all up to the custom_id's
# length.
_FILE = struct.Struct(">hiq")
_UP_TO_ID = struct.Struct(">14siiiiiii")
_LENGTH = struct.Struct(">i")

# Bytes that libpq gets at once (few, because of psycopg issue 255), and how many such blocks may wait for the
# server while the next lines are read: two megabytes, enough to keep both sides busy.
_WRITE_MAX = 128 * 1024
_WAITING_MAX = 16
# Lanes of one file that a list looks at.
_MAX_LANES = 100


class FileLane(msgspec.Struct, frozen=True):
    """The lines of a file that share one model and url."""

    model: str
    url: str
    total: int


class NewFile(msgspec.Struct, frozen=True):
    """A file to add. Its lines, if any, are already written; `lanes` are in the order of their numbers."""

    id: UUID
    tenant: str
    purpose: str
    filename: str
    size: int
    digest: bytes
    lanes: Sequence[FileLane] = ()
    # The key of its content in the object store; None if the content is in `lines`.
    object_key: str | None = None
    # Seconds until it expires; None: never.
    expires_after: float | None = None
    errors: Sequence[ContentError] | None = None


class FileContents(msgspec.Struct, frozen=True):
    """Models and urls of a file's lines; of a file with very many, the first ones."""

    id: UUID
    models: Sequence[str]
    urls: Sequence[str]


class Duplicate(msgspec.Struct, frozen=True):
    """A line with the same custom_id as an earlier one."""

    line_no: int
    custom_id: str
    first_line_no: int


async def get(session: Session, file_id: UUID) -> File | None:
    rows = await session.rows(statement("get_file"), {"file": file_id})
    return _file(rows[0]) if rows else None


async def visible(session: Session, tenant: str, file_id: UUID) -> File | None:
    """Get the file if the tenant can see it: it is neither deleted nor expired."""
    rows = await session.rows(statement("visible_file"), {"tenant": tenant, "file": file_id})
    return _file(rows[0]) if rows else None


async def page(
    session: Session,
    tenant: str,
    *,
    limit: int,
    order: Literal["asc", "desc"] = "desc",
    after: File | None = None,
    purpose: str | None = None,
) -> list[File]:
    """List the files that the tenant can see. `after` is the last file of the previous page."""
    listing = statement("list_files_newest" if order == "desc" else "list_files_oldest")
    params = {
        "tenant": tenant,
        "limit": limit,
        "after_at": after and after.created_at,
        "after": after and after.id,
        "purpose": purpose,
    }
    return [_file(row) for row in await session.rows(listing, params)]


async def contents(session: Session, files: Sequence[UUID]) -> list[FileContents]:
    """What the lines of files that may be seen are for, in the order of the files."""
    params = {"files": list(files), "lanes": _MAX_LANES}
    return [FileContents(*row) for row in await session.rows(statement("file_contents"), params)]


async def delete(session: Session, tenant: str, file_id: UUID) -> bool:
    """Hide a file at once. Return False if it does not exist."""
    return bool(await session.rows(statement("delete_file"), {"tenant": tenant, "file": file_id}))


async def find(session: Session, tenant: str, digest: bytes) -> File | None:
    """Find the newest file that an earlier run created from the same input."""
    rows = await session.rows(statement("find_file"), {"tenant": tenant, "digest": digest})
    return _file(rows[0]) if rows else None


def _file(row: Row) -> File:
    file = File(*row)
    if file.errors is None:
        return file
    return msgspec.structs.replace(file, errors=msgspec.convert(file.errors, tuple[ContentError, ...]))


def added(new: NewFile, no: int | None) -> dict[str, Any]:
    """The parameters of add_file. `no` is None if no lines are written before the file."""
    return {
        "id": new.id,
        "no": no,
        "tenant": new.tenant,
        "purpose": new.purpose,
        "filename": new.filename,
        "bytes": new.size,
        "line_count": sum(lane.total for lane in new.lanes),
        "digest": new.digest,
        "object_key": new.object_key,
        "errors": None if new.errors is None else Jsonb(msgspec.to_builtins(new.errors)),
        "expires_after": new.expires_after,
        "lane_models": [lane.model for lane in new.lanes],
        "lane_urls": [lane.url for lane in new.lanes],
        "lane_totals": [lane.total for lane in new.lanes],
    }


class Incoming:
    """Ingest of one file: first its lines, then the check for duplicates, then the file itself."""

    def __init__(self, connection: StoreConnection, no: int) -> None:
        self._connection = connection
        self._no = no

    @property
    def no(self) -> int:
        return self._no

    @asynccontextmanager
    async def lines(self) -> "AsyncIterator[LineWriter]":
        cursor = self._connection.cursor()
        copy_lines = statement("copy_lines").text_in(self._connection.schema)
        async with cursor.copy(copy_lines, writer=_SteadyWriter(cursor)) as copy:
            await copy.write(_SIGNATURE)
            yield LineWriter(copy, self._no)
            await copy.write(_END)

    async def duplicates(self, suspects: Sequence[bytes] | None, limit: int) -> list[Duplicate]:
        """Find the first lines whose custom_id an earlier line has.

        None: check all ids, not only `suspects`.
        """
        await run(self._connection, statement("read_by_key"), {})
        params: dict[str, Any] = {"file": self._no, "limit": limit}
        if suspects is None:
            rows = await run(self._connection, statement("duplicates"), params)
        else:
            params["suspects"] = TextArray(suspects)
            rows = await run(self._connection, statement("duplicates_among"), params)
        return [Duplicate(*row) for row in rows]

    async def remember(self, idempotency_key: IdempotencyKey, file_id: UUID) -> None:
        """Record the file under the caller's idempotency key.

        Raises IdempotencyConflict if the key is used.
        """
        await idempotency.remember(self._connection, idempotency_key, file_id)

    async def complete_upload(self, upload_id: UUID, file_id: UUID) -> bool:
        """Complete the upload with this file. Return False if the upload has already ended."""
        params = {"upload": upload_id, "file": file_id}
        return bool(await run(self._connection, statement("complete_upload"), params))

    async def add(self, new: NewFile) -> File:
        rows = await run(self._connection, statement("add_file"), added(new, self._no))
        return _file(rows[0])


class LineWriter:
    """Writes lines to the table. They come as columns, the way the parser returns them."""

    def __init__(self, copy: psycopg.AsyncCopy, file_no: int) -> None:
        self._copy = copy
        self._file = _FILE.pack(6, 8, file_no)

    async def write(
        self,
        lane_nos: Sequence[int],
        ordinals: Sequence[int],
        line_nos: Sequence[int],
        custom_ids: Sequence[bytes],
        bodies: Sequence[bytes],
    ) -> None:
        """Write lines. Returns when the server has received all but a bounded number of blocks."""
        parts: list[bytes] = [b""] * (4 * len(bodies))
        parts[0::4] = map(
            _UP_TO_ID.pack,
            repeat(self._file),
            *(repeat(4), lane_nos),
            *(repeat(4), ordinals),
            *(repeat(4), line_nos),
            map(len, custom_ids),
        )
        parts[1::4] = custom_ids
        parts[2::4] = map(_LENGTH.pack, map(len, bodies))
        parts[3::4] = bodies
        await self._copy.write(b"".join(parts))


class _SteadyWriter(AsyncLibpqWriter):
    """Writer for COPY that keeps the server busy with a bounded buffer.

    psycopg's own writer never waits, so libpq's buffer grows and is moved in memory for every block: a bare
    COPY of a million lines ran at 150,000 rows/s with it and at 400,000 without, in 100 MB less. A writer
    that waits after every block leaves the server idle, because a socket counts as writable only when four
    fifths of its buffer are empty: it wrote 197,000 lines/s, and this one 257,000.
    """

    def __init__(self, cursor: psycopg.AsyncCursor[Any]) -> None:
        super().__init__(cursor)
        self._waiting: deque[Buffer] = deque()

    async def write(self, data: Buffer) -> None:
        for start in range(0, len(data), _WRITE_MAX):
            self._waiting.append(data[start : start + _WRITE_MAX])
        await self._push(_WAITING_MAX)

    async def finish(self, exc: BaseException | None = None) -> None:
        if exc is None:
            await self._push(0)
        await super().finish(exc)

    async def _push(self, maximum: int) -> None:
        """Send what the server accepts now, and wait for it while more than `maximum` blocks are left."""
        pgconn = self.connection.pgconn
        while self._waiting:
            if pgconn.flush() == 0:
                await self.connection.wait(copy_to(pgconn, self._waiting.popleft(), flush=False))
            elif len(self._waiting) > maximum:
                await self.connection.wait(_flushed(pgconn))
            else:
                break


def _flushed(pgconn: PGconn) -> PQGen[None]:
    """Flush like psycopg's `send`, whose C version fails when it is resumed after a cancellation."""
    while pgconn.flush() != 0:
        while not (yield WAIT_W):
            continue


@asynccontextmanager
async def incoming(session: Session) -> AsyncIterator[Incoming]:
    """Open the transaction that adds a new file. If it fails, nothing of the file remains."""
    async with session.open_ended() as connection, connection.transaction():
        ((no,),) = await run(connection, statement("next_file_no"), {})
        yield Incoming(connection, no)


async def endpoints(session: Session, file_id: UUID) -> list[str]:
    return [url for (url,) in await session.rows(statement("endpoints_of_file"), {"file": file_id})]


async def models(session: Session, file_id: UUID) -> list[str]:
    return [model for (model,) in await session.rows(statement("models_of_file"), {"file": file_id})]
