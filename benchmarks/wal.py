"""The contents of a section of WAL by kind of record, as counted by PostgreSQL's pg_waldump."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from psycopg import sql

from benchmarks.server import BenchServer, execute

# Type, number, size without page images, size of page images; each figure is followed by its share.
_ROW = re.compile(r"^(\S+/\S+) +(\d+) \([^)]*\) +(\d+) \([^)]*\) +(\d+) ", re.MULTILINE)

# Settings for a server that keeps the WAL to examine.
KEEP = {"wal_keep_size": "8GB"}


@dataclass(frozen=True, slots=True)
class Record:
    kind: str
    count: int
    # In bytes, without full-page images.
    size: int
    images: int


def position(server: BenchServer) -> str:
    """The current end of the WAL."""
    lsn: str = execute(server.url, sql.SQL("SELECT pg_current_wal_insert_lsn()"))[0][0]
    return lsn


def read(server: BenchServer, begin: str, end: str) -> list[Record]:
    """Read the records of all databases and processes of the server."""
    if begin == end:
        return []
    # Only flushed WAL can be read.
    execute(server.url, sql.SQL("SELECT pg_switch_wal()"))
    folder = server.log.parent / "postgres"
    program = Path(psutil.Process(int((folder / "postmaster.pid").read_text().split()[0])).exe())
    command = [str(program.with_name("pg_waldump")), "--stats=record", "--path", str(folder / "pg_wal")]
    done = subprocess.run(
        [*command, "--start", begin, "--end", end], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"pg_waldump ended with {done.returncode}: {done.stderr}")
    return parse(done.stdout)


def parse(reported: str) -> list[Record]:
    return [
        Record(kind, int(count), int(size), int(images))
        for kind, count, size, images in _ROW.findall(reported)
    ]


def images(records: Sequence[Record]) -> int:
    return sum(record.images for record in records)
