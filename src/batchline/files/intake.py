"""Files from clients of a server: streamed into the object store, hashed and limited, then recorded.

An object that will certainly not be recorded is deleted at once. If that is not certain, the sweep deletes it
later. A file whose upload began longer ago than the sweep waits is not recorded.
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
from batchline.store.session import StatementRefused, StorageQuotaExceeded, TenantClosed

BATCH_PURPOSE = "batch"
FILES_SCOPE = "files"
# Seconds from the first byte to the commit. The sweep waits an hour longer (GARBAGE_AGE), because clocks
# differ.
RECORD_WITHIN = 5 * 3600.0

# Each block needs a call in a thread, so small ones are joined.
_BLOCK = 1024 * 1024
_MAX_UPLOADS = 64
# So slow uploads of one tenant do not block other tenants.
_MAX_PER_TENANT = 32


# After these, it is certain that nothing was recorded.
_NOT_RECORDED = (
    IdempotencyConflict,
    UploadEnded,
    TooLate,
    StatementRefused,
    StorageQuotaExceeded,
    TenantClosed,
)


class ContentTooLarge(Exception):
    """The content is larger than allowed."""

    def __init__(self, maximum: int) -> None:
        super().__init__(f"the content has more than {maximum:,} bytes")
        self.maximum = maximum


class Content(msgspec.Struct, frozen=True):
    """Size and hashes of stored content."""

    size: int
    sha256: bytes
    # In hexadecimal; empty unless requested.
    md5: str


@dataclass(slots=True)
class Arrival:
    """An object that is being uploaded. `arriving` deletes it, unless it is or may be recorded."""

    objects: Objects
    key: str
    id: UUID
    began: float = field(default_factory=time.monotonic)
    # False once the object may be recorded.
    ours: bool = True

    async def write(self, blocks: AsyncIterable[bytes], maximum: int, *, with_md5: bool = False) -> Content:
        """Store `blocks`. Raises ContentTooLarge, or TooLate if they take too long."""
        hashing = _Hashing(blocks, maximum, with_md5)
        try:
            async with asyncio.timeout(RECORD_WITHIN):
                await self.objects.write(self.key, hashing.gathered())
        except TimeoutError:
            raise TooLate(f"the upload of {self.key} took too long") from None
        return hashing.content()

    @property
    def record_by(self) -> float:
        return self.began + RECORD_WITHIN


@asynccontextmanager
async def arriving(objects: Objects, folder: str = INPUTS) -> AsyncIterator[Arrival]:
    """A new object with a new key."""
    object_id = ids.new_id()
    arrival = Arrival(objects, f"{folder}{object_id.hex}", object_id)
    try:
        yield arrival
    finally:
        if arrival.ours:
            # If that fails, the sweep deletes it later.
            with suppress(ObjectStoreUnavailable):
                await objects.delete([arrival.key])


class Description(msgspec.Struct, frozen=True):
    """A client's parameters of a file."""

    tenant: str
    purpose: str
    filename: str
    expires_after: float | None

    def idempotency_key(self, key: str | None, content: Content) -> IdempotencyKey | None:
        """The key may be repeated only with the same content and parameters."""
        if key is None:
            return None
        requested = (content.sha256.hex(), self.purpose, self.filename, self.expires_after)
        return IdempotencyKey(self.tenant, FILES_SCOPE, key, sha256(msgspec.json.encode(requested)).digest())


class FileIntake:
    """Records uploaded files. Holds the processes that ingest lines, so it must be closed."""

    def __init__(self, url: str, objects: Objects, sessions: Sessions) -> None:
        self._url = url
        self._objects = objects
        self._sessions = sessions
        self.ingesters = Ingesters()
        # Each upload needs some megabytes of memory; further ones wait.
        self._slots = asyncio.Semaphore(_MAX_UPLOADS)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Hold an upload slot. Each tenant gets at most a share of them."""
        share = self._shares.get(tenant)
        if share is None:
            self._shares[tenant] = share = asyncio.Semaphore(_MAX_PER_TENANT)
        async with share, self._slots:
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
        """Record a file; for purpose `batch` with its lines.

        Raises IdempotencyConflict, UploadEnded, TooLate, StatementRefused, StorageQuotaExceeded or
        TenantClosed if nothing was recorded.
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
        # From here on, the object is deleted only if it is certainly not recorded.
        arrival.ours = False
        try:
            if described.purpose == BATCH_PURPOSE:
                return await self.ingesters.ingest(self._url, self._objects, stored, rules)
            async with self._sessions.one() as session:
                return await record(session, stored)
        except _NOT_RECORDED:
            arrival.ours = True
            raise


class _Hashing:
    """Hashes, counts and limits blocks as they pass."""

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
