"""Files in: JSONL from paths or streams into `lines`, whole or not at all, in flat memory.

One pass over the input hashes it, reads it (engine/reading.py) and copies its lines into the database, all in
one transaction, so that a file that is refused, a process that is killed and a call that is cancelled leave
nothing behind. Lines are copied also after a first error, because duplicates are found among copied lines.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import msgspec

from batchline import ids
from batchline.engine.reading import MOST_ERRORS, LineError, Lines, Reader, ReadingRules
from batchline.model import File
from batchline.store import files
from batchline.store.session import Session

_PURPOSE = "batch"
# Small enough that the server has work from the last block while the next is read, and that an event loop
# which serves others too is held up for no more than two milliseconds.
_BLOCK = 128 * 1024


class Source(msgspec.Struct, frozen=True):
    """One part of the input. A sync iterable is asked for its blocks on the event loop: it must not wait for long."""

    name: str
    content: Path | Iterable[bytes] | AsyncIterable[bytes]


class InputUnreadable(Exception):
    """An input cannot be read: it is not there, not allowed, a folder, or the disk failed."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")


class FileRefused(Exception):
    """The input holds lines that cannot be run, or none that can; nothing was stored."""

    def __init__(self, errors: Sequence[LineError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        where = first.source if first.line is None else f"{first.source}, line {first.line}"
        message = f"{where}: {first.message}"
        if len(self.errors) > 1:
            many = f"{len(self.errors)} errors or more" if len(self.errors) >= MOST_ERRORS else f"{len(self.errors)} errors"
            message = f"{many}, the first in {message}"
        super().__init__(message)


async def ingest(
    url: str,
    sources: Sequence[Source],
    *,
    tenant: str,
    filename: str,
    rules: ReadingRules | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> File:
    """Take `sources` in as one file, in their order. `on_progress` is told the number of bytes read so far."""
    check_readable([source.content for source in sources if isinstance(source.content, Path)])
    reader = Reader(rules or ReadingRules())
    sieve = Sieve()
    total = 0
    outer = sha256()
    async with Session(url, "ingest") as session, files.incoming(session) as incoming:
        async with incoming.lines() as writer:
            for source in sources:
                inner = sha256()
                reader.begin(source.name)
                async for block in _blocks(source):
                    inner.update(block)
                    total += len(block)
                    await _write(reader.feed(block), sieve, writer)
                    if on_progress:
                        on_progress(total)
                    if reader.gave_up:
                        break
                await _write(reader.end(), sieve, writer)
                outer.update(inner.digest())
                if reader.gave_up:
                    break
        if sieve.suspects != []:
            for duplicate in await incoming.duplicates(sieve.suspects, MOST_ERRORS):
                reader.refuse_duplicate(duplicate.line_no, duplicate.custom_id, duplicate.first_line_no)
        if errors := reader.errors():
            raise FileRefused(errors)
        return await incoming.add(
            files.NewFile(
                id=ids.new_id(),
                tenant=tenant,
                purpose=_PURPOSE,
                filename=filename,
                bytes=total,
                digest=outer.digest(),
                lanes=[files.FileLane(lane.model, lane.url, lane.total) for lane in reader.lanes],
            )
        )
async def _write(lines, sieve, writer):
    if lines.bodies:
        sieve.sift(lines.custom_ids)
        await writer.write(lines.lane_nos, lines.ordinals, lines.line_nos, lines.custom_ids, lines.bodies)
def check_readable(paths): pass
async def _blocks(source):
    with open(source.content,'rb') as f:
        while b:=f.read(_BLOCK): yield b
class Sieve:
    def __init__(self):
        self.suspects=[]
        self._seen=bytearray(2**24)
    def sift(self, custom_ids):
        seen=self._seen; bits=_BITS; doubtful=set()
        for code in map(crc32, custom_ids):
            bit = bits[code & 7]
            slot = code >> 8
            byte = seen[slot]
            if byte & bit:
                doubtful.add(code)
            else:
                seen[slot] = byte | bit
        if doubtful:
            self.suspects+=[c for c in custom_ids if crc32(c) in doubtful]
_BITS=tuple(1<<i for i in range(8))
