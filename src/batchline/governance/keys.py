"""API keys: created, revoked and recognized by their hash. The secret is shown once and never stored.

Each act and its audit record commit in one transaction.
"""

import re
import secrets
from hashlib import sha256
from uuid import UUID

from batchline.model import DEFAULT_TENANT, ApiKey, Role, ids
from batchline.model.ids import new_id
from batchline.store import keys
from batchline.store.audit import SYSTEM, AuditEvent
from batchline.store.keys import NewKey
from batchline.store.session import Session

PREFIX = "bl-"
_RANDOM_BYTES = 32
_HINT = len(PREFIX) + 6
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_NAME = 200


class InvalidKeyRequest(ValueError):
    """The name or tenant of a new key is not valid. The message is for a person."""


async def create(
    session: Session,
    name: str,
    tenant: str = DEFAULT_TENANT,
    role: Role = Role.USER,
    *,
    actor: str = SYSTEM,
) -> tuple[ApiKey, str]:
    """Create a key; return it and its secret, which cannot be read again. `actor` is for the audit log."""
    new, secret = _new(name, tenant, role)
    return await keys.add(session, new, _event("key.created", new, actor)), secret


async def create_first(session: Session) -> tuple[ApiKey, str] | None:
    """Create an admin key for a server that has never had a key. None: it has had one."""
    new, secret = _new("first", DEFAULT_TENANT, Role.ADMIN)
    key = await keys.add_first(session, new, _event("key.created", new, SYSTEM))
    return None if key is None else (key, secret)


async def revoke(session: Session, key_id: UUID, actor: str) -> ApiKey | None:
    """None: there is no such key, or it is already revoked."""
    return await keys.revoke(session, key_id, lambda key: _event("key.revoked", key, actor))


async def authenticate(session: Session, secret: str) -> ApiKey | None:
    """The key with this secret, unless it is revoked. The lookup uses the hash, so timing reveals nothing."""
    if not secret.startswith(PREFIX):
        return None
    return await keys.find(session, digest(secret))


def digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _new(name: str, tenant: str, role: Role) -> tuple[NewKey, str]:
    if not name.strip() or not name.isprintable() or len(name) > _MAX_NAME:
        raise InvalidKeyRequest(f"a key's name must have 1 to {_MAX_NAME} printable characters")
    if _TENANT.fullmatch(tenant) is None:
        raise InvalidKeyRequest(
            f"invalid tenant {tenant!r}: use 1 to 64 letters, digits, dots, dashes and underscores,"
            " beginning with a letter or digit"
        )
    secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    return NewKey(new_id(), name, tenant, role, digest(secret), secret[:_HINT]), secret


def _event(action: str, key: NewKey | ApiKey, actor: str) -> AuditEvent:
    """The subject is the user of the key. The hint distinguishes keys of the same name."""
    detail = {"key_id": ids.show(ids.KEY, key.id), "role": key.role.value, "hint": key.hint}
    return AuditEvent(key.tenant, actor, action, subject=key.name, detail=detail)
