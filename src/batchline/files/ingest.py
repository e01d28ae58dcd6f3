"""Ingests JSONL from paths or streams into `lines`: the whole file or nothing, in constant memory.

One pass over the input hashes it unless its digest is known, parses it (files/parsing.py) and copies its
lines into the database, in one transaction. A refused file, a killed process and a cancelled call leave
nothing behind. Lines are copied even after a first error, because duplicates are found among copied lines.

Content that is already in the object store (files/intake.py) stays there, and the file is recorded even if no
batch can run over it.
"""

import asyncio
import os
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from hashlib import file_digest, sha256
from pathlib import Path
from uuid import UUID
from zlib import crc32

import msgspec

from batchline.files.parsing import MAX_ERRORS, LineColumns, LineError, Reader, ReadingRules
from batchline.model import ContentError, File, ids
from batchline.store import files
from batchline.store.idempotency import IdempotencyKey
from batchline.store.session import Session

_PURPOSE = "batch"
# PostgreSQL works on one block while the next is parsed, and the event loop is blocked for that time, a
# millisecond or two. Measured in lines/s: 64 KiB 236,000; 128 KiB 247,000; 1 MiB 175,000.
_BLOCK = 128 * 1024


class InputSource(msgspec.Struct, frozen=True):
    """One part of the input: a path, or blocks of any size.

    A sync iterable runs on the event loop, so it must not block.
    """

    name: str
    content: Path | Iterable[bytes] | AsyncIterable[bytes]
    # What messages call one of its lines.
    unit: str = "line"


class InputUnreadable(Exception):
    """An input cannot be read: it is missing, not permitted, not a file, or its disk or stream failed."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be read: {reason}")
        self.name = name


class FileRefused(Exception):
    """The input has invalid lines, or no lines. Nothing was stored."""

    def __init__(self, errors: Sequence[LineError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        where = first.source if first.line is None else f"{first.source}, {first.unit} {first.line}"
        message = f"{where}: {first.message}"
        if len(self.errors) > 1:
            more = " or more" if len(self.errors) == MAX_ERRORS else ""
            message = f"{len(self.errors)} errors{more}, the first in {message}"
        super().__init__(message)


async def ingest(
    url: str,
    sources: Sequence[InputSource],
    *,
    tenant: str,
    filename: str,
    rules: ReadingRules | None = None,
    known: "Fingerprint | None" = None,
    on_progress: Callable[[int], None] | None = None,
) -> File:
    """Ingest `sources`, in their order, as one file. `on_progress` gets the number of bytes read.

    `known` is the fingerprint of the files that the sources come from; they are not hashed again. Raises
    InputUnreadable if a file has changed since, because its digest would be wrong.
    """
    check_readable([source.content for source in sources if isinstance(source.content, Path)])
    reader = Reader(rules or ReadingRules())
    async with Session(url, "ingest") as session, files.incoming(session) as incoming:
        hasher = _Hasher()
        size = await _take_lines(incoming, sources, reader, hasher if known is None else None, on_progress)
        if known is not None:
            known.check_unchanged()
        return await incoming.add(
            files.NewFile(
                id=ids.new_id(),
                tenant=tenant,
                purpose=_PURPOSE,
                filename=filename,
                size=size,
                digest=hasher.digest() if known is None else known.digest,
                lanes=_lanes(reader),
            )
        )


class StoredFile(msgspec.Struct, frozen=True):
    """A file to record. Its content is complete, hashed and in the object store."""

    id: UUID
    tenant: str
    purpose: str
    filename: str
    size: int
    digest: bytes
    object_key: str
    # A time of `time.monotonic`. Later, the sweep may delete the object.
    record_by: float
    # Seconds until it expires; None: never.
    expires_after: float | None = None
    # The caller's key for repeating the request.
    idempotency_key: IdempotencyKey | None = None
    # The upload that becomes this file.
    upload_id: UUID | None = None


class TooLate(Exception):
    """The upload took too long, so the file is not recorded."""


class UploadEnded(Exception):
    """The upload that should become this file has already ended."""


async def record(session: Session, stored: StoredFile) -> File:
    """Record a file without reading its content."""
    async with files.incoming(session) as incoming:
        await _announce(incoming, stored)
        return await _record(incoming, stored)


async def ingest_stored(
    url: str, stored: StoredFile, content: AsyncIterable[bytes], rules: ReadingRules
) -> File:
    """Record a file with its lines; or, if lines are not valid, without lines and with its errors.

    A concurrent call with the same idempotency key waits, so that the work is done once.
    """
    reader = Reader(rules)
    async with Session(url, "ingest") as session:
        try:
            async with files.incoming(session) as incoming:
                await _announce(incoming, stored)
                await _take_lines(incoming, [InputSource(stored.filename, content)], reader)
                return await _record(incoming, stored, lanes=_lanes(reader))
        except FileRefused as refused:
            errors = [ContentError(e.code.value, e.message, e.param, e.line) for e in refused.errors]
            async with files.incoming(session) as incoming:
                await _announce(incoming, stored)
                return await _record(incoming, stored, errors=errors)


async def _announce(incoming: files.Incoming, stored: StoredFile) -> None:
    """First of all, so that a second request with the same key or upload waits here."""
    if stored.idempotency_key is not None:
        await incoming.remember(stored.idempotency_key, stored.id)
    if stored.upload_id is not None and not await incoming.complete_upload(stored.upload_id, stored.id):
        raise UploadEnded(f"upload {stored.upload_id} has already ended")


async def _record(
    incoming: files.Incoming,
    stored: StoredFile,
    *,
    lanes: Sequence[files.FileLane] = (),
    errors: Sequence[ContentError] | None = None,
) -> File:
    if time.monotonic() > stored.record_by:
        raise TooLate(f"the upload of {stored.filename} took too long")
    return await incoming.add(
        files.NewFile(
            id=stored.id,
            tenant=stored.tenant,
            purpose=stored.purpose,
            filename=stored.filename,
            size=stored.size,
            digest=stored.digest,
            lanes=lanes,
            object_key=stored.object_key,
            expires_after=stored.expires_after,
            errors=errors,
        )
    )


async def _take_lines(
    incoming: files.Incoming,
    sources: Sequence[InputSource],
    reader: Reader,
    hasher: "_Hasher | None" = None,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Copy all lines, hash them if there is a `hasher`, and return their size. Raises FileRefused."""
    sieve = Sieve()
    size = 0
    async with incoming.lines() as writer:
        for source in sources:
            reader.begin(source.name, source.unit)
            async with aclosing(_blocks(source)) as blocks:
                async for block in blocks:
                    if hasher is not None:
                        hasher.update(block)
                    size += len(block)
                    await _copy(reader.feed(block), sieve, writer)
                    if on_progress is not None:
                        on_progress(size)
                    # Lets other tasks run, and cancellation happen, if nothing else above waits.
                    await asyncio.sleep(0)
                    if reader.abandoned:
                        break
            await _copy(reader.end(), sieve, writer)
            if hasher is not None:
                hasher.end_source()
            if reader.abandoned:
                break
    if sieve.suspects != []:
        for found in await incoming.duplicates(sieve.suspects, MAX_ERRORS):
            reader.refuse_duplicate(found.line_no, found.custom_id, found.first_line_no)
    if errors := reader.errors():
        raise FileRefused(errors)
    return size


def _lanes(reader: Reader) -> list[files.FileLane]:
    return [files.FileLane(lane.model, lane.url, lane.total) for lane in reader.lanes]


class Fingerprint(msgspec.Struct, frozen=True):
    """The digest that `ingest` stores for some files, and the version of each file when it was hashed."""

    digest: bytes
    # Path, size and time of the last change.
    versions: tuple[tuple[Path, int, int], ...]
    # The digest of each file alone.
    digests: tuple[bytes, ...] = ()

    def check_unchanged(self) -> None:
        """Raises InputUnreadable for the first path that has changed since it was hashed."""
        for path, *version in self.versions:
            if _version(path.stat()) != tuple(version):
                raise InputUnreadable(str(path), "it changed while it was read")


def fingerprint(paths: Sequence[Path]) -> Fingerprint:
    """Hash the files, to recognize the same input. Raises InputUnreadable."""
    digests, versions = [], []
    for path in paths:
        try:
            with path.open("rb") as file:
                versions.append((path, *_version(os.fstat(file.fileno()))))
                digests.append(file_digest(file, "sha256").digest())
        except (OSError, ValueError) as error:
            raise InputUnreadable(str(path), unreadable_reason(error)) from error
    return Fingerprint(_combined(digests), tuple(versions), tuple(digests))


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def check_readable(paths: Iterable[Path]) -> None:
    """Raises InputUnreadable for the first path that is not a readable file."""
    for path in paths:
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise InputUnreadable(str(path), "it is a folder")
            # A pipe can be read only once, but the content is read after the digest.
            if not stat.S_ISREG(mode):
                raise InputUnreadable(str(path), "it is not a regular file")
            os.close(os.open(path, os.O_RDONLY))
        except (OSError, ValueError) as error:
            raise InputUnreadable(str(path), unreadable_reason(error)) from error


class Sieve:
    """Finds custom_ids that may be duplicates. It misses none, and is seldom wrong.

    It has one bit per value of a checksum: 16 MiB for any number of lines. Of a million custom_ids that count
    up, as request-1, request-2, none collide, because a CRC separates values that differ in few bits. Of a
    million random ones 0.4 % collide. Only these suspects are looked up in the database: 0.4 s for a million
    lines. Sorting all of them there took 1.1 to 1.5 s.
    """

    # With more, as in a file with ten million random ids or with one id only, all are suspects.
    _MAX_SUSPECTS = 250_000
    _BITS = (1, 2, 4, 8, 16, 32, 64, 128)

    def __init__(self) -> None:
        # None: all custom_ids.
        self.suspects: list[bytes] | None = []
        self._seen = bytearray(2**24)

    def sift(self, custom_ids: list[bytes]) -> None:
        if self.suspects is None:
            return
        seen, bits = self._seen, self._BITS
        met = set()
        for checksum in map(crc32, custom_ids):
            bit = bits[checksum & 7]
            index = checksum >> 8
            byte = seen[index]
            if byte & bit:
                met.add(checksum)
            else:
                seen[index] = byte | bit
        if met:
            self.suspects += [custom_id for custom_id in custom_ids if crc32(custom_id) in met]
            if len(self.suspects) > self._MAX_SUSPECTS:
                self.suspects = None


async def _copy(lines: LineColumns, sieve: Sieve, writer: files.LineWriter) -> None:
    if lines.bodies:
        sieve.sift(lines.custom_ids)
        await writer.write(lines.lane_nos, lines.ordinals, lines.line_nos, lines.custom_ids, lines.bodies)


async def _blocks(source: InputSource) -> AsyncGenerator[bytes]:
    """The content of a source in blocks of about _BLOCK bytes."""
    try:
        match source.content:
            case Path() as path:
                with path.open("rb", buffering=0) as file:
                    while block := file.read(_BLOCK):
                        yield block
            case content:
                rest = bytearray()
                async for piece in _pieces(content):
                    rest += piece
                    if len(rest) >= _BLOCK:
                        yield bytes(rest)
                        rest.clear()
                yield bytes(rest)
    except OSError as error:
        raise InputUnreadable(source.name, unreadable_reason(error)) from error


async def _pieces(content: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The blocks of a source; large ones are cut."""
    if isinstance(content, AsyncIterable):
        async for block in content:
            for start in range(0, len(block), _BLOCK):
                yield block[start : start + _BLOCK]
    else:
        for block in content:
            for start in range(0, len(block), _BLOCK):
                yield block[start : start + _BLOCK]


class _Hasher:
    """Hashes sources as `fingerprint` hashes files."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []
        self._source = sha256()

    def update(self, block: bytes) -> None:
        self._source.update(block)

    def end_source(self) -> None:
        self._digests.append(self._source.digest())
        self._source = sha256()

    def digest(self) -> bytes:
        return _combined(self._digests)


def _combined(digests: list[bytes]) -> bytes:
    """A hash of hashes, so that ["ab"] and ["a", "b"] differ."""
    return sha256(b"".join(digests)).digest()


def unreadable_reason(error: OSError | ValueError) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return (strerror or str(error) or type(error).__name__).lower()
