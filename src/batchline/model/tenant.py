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
    # An admin of its tenant who may also see the usage of all tenants, set their quotas and erase them.
    OPERATOR = "operator"
    # For Prometheus and autoscalers: reads the metrics and the demand of all tenants, and nothing else.
    MONITOR = "monitor"

    @property
    def administers(self) -> bool:
        """Whether it may do what an admin of its tenant may do."""
        return self in (Role.ADMIN, Role.OPERATOR)

    @property
    def monitors(self) -> bool:
        """Whether it may read the metrics and the demand of all tenants."""
        return self in (Role.MONITOR, Role.OPERATOR)


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
