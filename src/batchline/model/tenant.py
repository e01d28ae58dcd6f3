"""Who owns and who calls: tenants, roles and API keys."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

DEFAULT_TENANT = "default"


# Who calls a server that asks for no keys.
ANYBODY = "local"


class Role(StrEnum):
    USER = "user"
    APPROVER = "approver"
    ADMIN = "admin"


class RequestKind(StrEnum):
    """What requests are counted as, by the minute; none of them counts against another."""

    READ = "read"
    WRITE = "write"
    # Decisions on batches and admins' calls: limited per user, whatever others do.
    DECISION = "decision"


class ApiKey(msgspec.Struct, frozen=True):
    """Who may call the server, and for which tenant. The secret itself is kept nowhere."""

    id: UUID
    name: str
    tenant: str
    role: Role
    # The first characters of the secret, to tell keys apart.
    hint: str
    created_at: datetime
    revoked_at: datetime | None
