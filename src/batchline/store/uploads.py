"""Uploads: files that clients send in parts."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement

_PAGE = 1000


class UploadStatus(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class NewUpload(msgspec.Struct, frozen=True):
    """An upload to create. Times are in seconds; `expires_after` applies to the resulting file."""

    id: UUID
    tenant: str
    purpose: str
    filename: str
    mime_type: str
    bytes: int
    expires_after: int | None
    lifetime: float


class Upload(msgspec.Struct, frozen=True):
    id: UUID
    tenant: str
    purpose: str
    filename: str
    mime_type: str
    bytes: int
    expires_after: int | None
    created_at: datetime
    expires_at: datetime
    completed_at: datetime | None
    cancelled_at: datetime | None
    file_id: UUID | None
    # Whether `expires_at` was past when the row was read.
    expired: bool

    @property
    def status(self) -> UploadStatus:
        if self.completed_at is not None:
            return UploadStatus.COMPLETED
        if self.cancelled_at is not None:
            return UploadStatus.CANCELLED
        return UploadStatus.EXPIRED if self.expired else UploadStatus.PENDING


class Part(msgspec.Struct, frozen=True):
    id: UUID
    bytes: int
    object_key: str


async def create(session: Session, new: NewUpload) -> Upload:
    rows = await session.rows(statement("add_upload"), msgspec.structs.asdict(new))
    return Upload(*rows[0])


async def get(session: Session, tenant: str, upload_id: UUID) -> Upload | None:
    rows = await session.rows(statement("get_upload"), {"tenant": tenant, "upload": upload_id})
    return Upload(*rows[0]) if rows else None


async def add_part(
    session: Session, tenant: str, upload_id: UUID, part: Part, *, max_parts: int, max_bytes: int
) -> datetime | None:
    """Record a part. Return its creation time, or None if the upload accepts no more parts."""
    params = {
        **msgspec.structs.asdict(part),
        "tenant": tenant,
        "upload": upload_id,
        "max_parts": max_parts,
        "max_bytes": max_bytes,
    }
    rows = await session.rows(statement("add_part"), params)
    return rows[0][0] if rows else None


async def parts(session: Session, upload_id: UUID) -> dict[UUID, Part]:
    rows = await session.rows(statement("upload_parts"), {"upload": upload_id})
    return {row[0]: Part(*row) for row in rows}


async def cancel(session: Session, tenant: str, upload_id: UUID) -> bool:
    """Cancel an upload. Return False if it has ended or is being completed."""
    return bool(await session.rows(statement("cancel_upload"), {"tenant": tenant, "upload": upload_id}))


async def ended_parts(
    session: Session, grace: timedelta, upload_id: UUID | None = None
) -> list[tuple[UUID, str]]:
    """List a page of parts (id, object key) of ended uploads: of one upload, or of all."""
    params = {"grace": grace, "upload": upload_id, "limit": _PAGE}
    return [(row[0], row[1]) for row in await session.rows(statement("ended_parts"), params)]


async def release(session: Session, grace: timedelta) -> int:
    """Give back what a chunk of expired uploads has reserved. Return 0 when none is left."""
    ((released,),) = await session.rows(statement("release_uploads"), {"grace": grace, "chunk": _PAGE})
    return int(released)


async def drop_parts(session: Session, part_ids: Sequence[UUID]) -> None:
    await session.rows(statement("drop_parts"), {"parts": list(part_ids)})


async def forget(session: Session, older_than: timedelta) -> int:
    """Delete a chunk of uploads that ended longer ago than `older_than`. Return 0 when none is left."""
    params = {"older_than": older_than, "chunk": _PAGE}
    ((gone,),) = await session.rows(statement("forget_uploads"), params)
    return int(gone)
