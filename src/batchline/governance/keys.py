"""API keys: made once, shown once, and known again by their hash alone."""

import re
import secrets
from hashlib import sha256

from batchline.model import DEFAULT_TENANT, ApiKey, Role
from batchline.model.ids import new_id
from batchline.store import keys
from batchline.store.audit import SYSTEM
from batchline.store.keys import NewKey
from batchline.store.session import Session

PREFIX = "bl-"
_RANDOM_BYTES = 32
_HINT = len(PREFIX) + 6
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST_NAME = 200


class InvalidKeyOrder(ValueError):
    """A key that cannot be made as it was asked for. The message is for a person."""


async def create(
    session: Session,
    name: str,
    tenant: str = DEFAULT_TENANT,
    role: Role = Role.USER,
    *,
    actor: str = SYSTEM,
) -> tuple[ApiKey, str]:
    """A new key and its secret, which is to be had here and never again. `actor` is who makes it."""
    new, secret = _new(name, tenant, role)
    return await keys.add(session, new, actor), secret


async def create_first(session: Session) -> tuple[ApiKey, str] | None:
    """An admin key for a server that has never had a key; None where one was made before."""
    new, secret = _new("first", DEFAULT_TENANT, Role.ADMIN)
    key = await keys.add_first(session, new, SYSTEM)
    return None if key is None else (key, secret)


async def authenticate(session: Session, secret: str) -> ApiKey | None:
    """The key that a caller shows, if it opens anything. Looked up by hash, so timing tells nothing."""
    if not secret.startswith(PREFIX):
        return None
    return await keys.find(session, digest(secret))


def digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _new(name: str, tenant: str, role: Role) -> tuple[NewKey, str]:
    if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise InvalidKeyOrder(f"a key's name has 1 to {_LONGEST_NAME} characters that can be printed")
    if _TENANT.fullmatch(tenant) is None:
        raise InvalidKeyOrder(
            f"tenant {tenant!r}: give 1 to 64 letters, digits, dots, dashes and underscores,"
            " a letter or digit first"
        )
    secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    return NewKey(new_id(), name, tenant, role, digest(secret), secret[:_HINT]), secret
