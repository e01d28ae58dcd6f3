"""Ingesting a file, against a bare binary COPY of the same rows into the same table.

`files.ingest.ingest` reads JSONL from disk, validates every line and looks for duplicates. The bare COPY gets
its rows in PostgreSQL's wire format, from memory, in blocks that keep the server busy. Both commit.
"""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.copy import LibpqWriter
from psycopg.generators import copy_to

from batchline.files.ingest import InputSource, ingest
from batchline.model import DEFAULT_TENANT
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_least, ratio
from benchmarks.inputs import write_jsonl
from benchmarks.server import execute
from benchmarks.timing import seconds

_BLOCK = 128 * 1024


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(300_000, quick=5_000)
    path = write_jsonl(bench.scratch / "ingest.jsonl", lines=lines)
    with bench.server.database() as url:
        await take_in(url, path)
        blocks = list(_wire_format(url))

        def clear() -> None:
            execute(url, sql.SQL("TRUNCATE batchline.lines, batchline.files, batchline.file_lanes"))
            bench.server.settle_down()

        async def ingest_rate() -> float:
            clear()
            return lines / await seconds(take_in(url, path))

        async def copy_rate() -> float:
            clear()
            return lines / _copy(url, blocks)

        ours, bare = await alternate(
            bench.size(5, quick=1),
            Contestant("Batchline", "rows/s", ingest_rate),
            Contestant("bare COPY", "rows/s", copy_rate),
        )
    path.unlink()
    return [ratio(f"rows per second of {lines:,} lines of 500 bytes", ours, bare, at_least(0.5))]


async def take_in(url: str, path: Path) -> None:
    await ingest(url, [InputSource(path.name, path)], tenant=DEFAULT_TENANT, filename=path.name)


def _wire_format(url: str) -> Iterator[bytes]:
    """The rows of `lines` in COPY's binary format, in blocks."""
    block = bytearray()
    query = "COPY batchline.lines TO STDOUT (FORMAT binary)"
    with psycopg.connect(url) as connection, connection.cursor() as cursor, cursor.copy(query) as copy:
        for row in copy:
            block += row
            if len(block) >= _BLOCK:
                yield bytes(block)
                block.clear()
    yield bytes(block)


def _copy(url: str, blocks: list[bytes]) -> float:
    """Copy the rows in, and return the seconds."""
    query = "COPY batchline.lines FROM STDIN (FORMAT binary)"
    begun = perf_counter()
    with (
        psycopg.connect(url) as connection,
        connection.cursor() as cursor,
        cursor.copy(query, writer=_Flushing(cursor)) as copy,
    ):
        for block in blocks:
            copy.write(block)
    return perf_counter() - begun


class _Flushing(LibpqWriter):
    """Writer that sends each block at once. Otherwise they pile up in libpq's buffer, at half the speed."""

    def write(self, data: Buffer) -> None:
        self.connection.wait(copy_to(self.connection.pgconn, data))
