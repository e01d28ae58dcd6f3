"""Budgets per minute: how many requests and tokens all workers together may send, and to what they apply."""

import hashlib
from uuid import UUID

import msgspec

# As a tenant: each tenant has a budget of this size, unless it has one of its own.
EACH_TENANT = "*"


class BudgetScope(msgspec.Struct, frozen=True):
    """The requests that a budget counts. None: any."""

    # The base URL, normalized.
    upstream: str | None = None
    # As lines name it.
    model: str | None = None
    tenant: str | None = None

    def applies(self, upstream: str, model: str, tenant: str) -> bool:
        return (
            self.upstream in (None, upstream)
            and self.model in (None, model)
            and self.tenant in (None, EACH_TENANT, tenant)
        )

    def id(self, unit: str) -> UUID:
        """The same in all workers. Made of a hash, because the URL may have secrets, and a tenant that is
        erased must leave no name behind."""
        parts = (unit, self.upstream, self.model, self.tenant)
        return UUID(bytes=hashlib.sha256(msgspec.json.encode(parts)).digest()[:16])


class RateBudget(msgspec.Struct, frozen=True):
    """Per minute, of all workers together. None: any number."""

    scope: BudgetScope
    requests: int | None = None
    tokens: int | None = None
    # For people, without secrets. It names no tenant.
    name: str = ""
