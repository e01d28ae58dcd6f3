"""A file, and the errors of a file that cannot run."""

from datetime import datetime
from uuid import UUID

import msgspec


class ContentError(msgspec.Struct, frozen=True):
    """Why no batch can run over a file, or why one failed while validating."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class File(msgspec.Struct, frozen=True):
    id: UUID
    tenant: str
    purpose: str
    filename: str
    bytes: int
    line_count: int
    object_key: str | None
    created_at: datetime
    expires_at: datetime | None
    # None: the file is valid, or its content was not checked.
    errors: tuple[ContentError, ...] | None = None
    deleted_at: datetime | None = None
