"""Tenants, roles and API keys."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

DEFAULT_TENANT = "default"
# The user of a server without API keys.
ANYBODY = "local"


class Role(StrEnum):
    USER = "user"
    APPROVER = "approver"
    ADMIN = "admin"


class RequestKind(StrEnum):
    """Kinds of requests. Each kind has its own limit per minute."""

    READ = "read"
    WRITE = "write"
    # Decisions and admin calls. They are limited only per user.
    DECISION = "decision"


class ApiKey(msgspec.Struct, frozen=True):
    """An API key. Its secret is not stored."""

    id: UUID
    name: str
    tenant: str
    role: Role
    # The first characters of the secret, to distinguish keys.
    hint: str
    created_at: datetime
    revoked_at: datetime | None
