"""Content from a server's clients: streamed into the object store, hashed and limited, then recorded.

Until it is recorded, an object is nobody's: it is removed at once if it is known that it never will be, and
by the sweep otherwise. Nothing is recorded that came in longer ago than the sweep waits.
"""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import md5, sha256
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from batchline.files.ingest import StoredFile, TooLate, UploadEnded, record
from batchline.files.ingest_process import Ingesters
from batchline.files.objects import INPUTS, Objects, ObjectStoreUnavailable
from batchline.files.parsing import ReadingRules
from batchline.model import File, ids
from batchline.store.idempotency import IdempotencyConflict, IdempotencyKey
from batchline.store.pool import Sessions
from batchline.store.session import StatementRefused

BATCH_PURPOSE = "batch"
FILES_SCOPE = "files"
# From the first byte to the commit. The sweep waits an hour longer (GARBAGE_AGE), for clocks that differ.
RECORD_WITHIN = 5 * 3600.0

# Each block costs a thread's turn, so small ones are gathered.
_BLOCK = 1024 * 1024
_AT_ONCE = 64
# So that no tenant's slow uploads keep the others out.
_AT_ONCE_OF_A_TENANT = 32


class ContentTooLarge(Exception):
    """There is more content than is allowed."""

    def __init__(self, maximum: int) -> None:
        super().__init__(f"it has more than {maximum:,} bytes")
        self.maximum = maximum


class Content(msgspec.Struct, frozen=True):
    """What came in."""

    size: int
    sha256: bytes
    # As people write it; empty unless asked for.
    md5: str


@dataclass(slots=True)
class Arrival:
    """One object on its way in. Leaving its context removes it, unless it was or may have been recorded."""

    objects: Objects
    key: str
    id: UUID
    began: float = field(default_factory=time.monotonic)
    # False once somebody may rely on the object.
    ours: bool = True

    async def write(self, blocks: AsyncIterable[bytes], maximum: int, *, with_md5: bool = False) -> Content:
        """Store `blocks`. Raises TooLarge at the first byte too many, TooLate for those that never end."""
        hashing = _Hashing(blocks, maximum, with_md5)
        try:
            async with asyncio.timeout(RECORD_WITHIN):
                await self.objects.write(self.key, hashing.gathered())
        except TimeoutError:
            raise TooLate(f"{self.key} took too long to come in") from None
        return hashing.content()

    @property
    def record_by(self) -> float:
        return self.began + RECORD_WITHIN


@asynccontextmanager
async def arriving(objects: Objects, folder: str = INPUTS) -> AsyncIterator[Arrival]:
    """An object that is not there yet, under a key of its own."""
    object_id = ids.new_id()
    arrival = Arrival(objects, f"{folder}{object_id.hex}", object_id)
    try:
        yield arrival
    finally:
        if arrival.ours:
            # What cannot be removed now is left to the sweep.
            with suppress(ObjectStoreUnavailable):
                await objects.delete([arrival.key])


class Description(msgspec.Struct, frozen=True):
    """What a client says of a file."""

    tenant: str
    purpose: str
    filename: str
    expires_after: float | None

    def idempotency_key(self, key: str | None, content: Content) -> IdempotencyKey | None:
        """The same key may be used again for the same content under the same description only."""
        if key is None:
            return None
        requested = (content.sha256.hex(), self.purpose, self.filename, self.expires_after)
        return IdempotencyKey(self.tenant, FILES_SCOPE, key, sha256(msgspec.json.encode(requested)).digest())


class FileIntake:
    """Records what came in; with a life, because lines are read in other processes."""

    def __init__(self, url: str, objects: Objects, sessions: Sessions) -> None:
        self._url = url
        self._objects = objects
        self._sessions = sessions
        self.ingesters = Ingesters()
        # Each that comes in takes some megabytes; the others wait to be read.
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """One of the places for what comes in, of which each tenant has a share at most."""
        share = self._shares.get(tenant)
        if share is None:
            self._shares[tenant] = share = asyncio.Semaphore(_AT_ONCE_OF_A_TENANT)
        async with share, self._places:
            yield

    async def close(self) -> None:
        await self.ingesters.close()

    async def record(
        self,
        arrival: Arrival,
        content: Content,
        described: Description,
        rules: ReadingRules,
        *,
        key: str | None = None,
        upload_id: UUID | None = None,
    ) -> File:
        """The file, once it is there; with its lines, if a batch may be made of it.

        Raises IdempotencyConflict, UploadEnded, TooLate, StatementRefused: then nothing was recorded.
        """
        stored = StoredFile(
            id=arrival.id,
            tenant=described.tenant,
            purpose=described.purpose,
            filename=described.filename,
            size=content.size,
            digest=content.sha256,
            object_key=arrival.key,
            record_by=arrival.record_by,
            expires_after=described.expires_after,
            idempotency_key=described.idempotency_key(key, content),
            upload_id=upload_id,
        )
        # From here on the object is removed only if it is known that it is not recorded.
        arrival.ours = False
        try:
            if described.purpose == BATCH_PURPOSE:
                return await self.ingesters.ingest(self._url, self._objects, stored, rules)
            async with self._sessions.one() as session:
                return await record(session, stored)
        except (IdempotencyConflict, UploadEnded, TooLate, StatementRefused):
            arrival.ours = True
            raise


class _Hashing:
    """Blocks that are hashed, counted and limited as they go by."""

    def __init__(self, blocks: AsyncIterable[bytes], maximum: int, with_md5: bool) -> None:
        self._blocks = blocks
        self._maximum = maximum
        self._sha256 = sha256()
        self._md5 = md5(usedforsecurity=False) if with_md5 else None
        self._size = 0

    async def gathered(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for block in self._blocks:
            self._size += len(block)
            if self._size > self._maximum:
                raise ContentTooLarge(self._maximum)
            self._sha256.update(block)
            if self._md5 is not None:
                self._md5.update(block)
            rest += block
            if len(rest) >= _BLOCK:
                yield bytes(rest)
                rest.clear()
        if rest:
            yield bytes(rest)

    def content(self) -> Content:
        return Content(self._size, self._sha256.digest(), self._md5.hexdigest() if self._md5 else "")
