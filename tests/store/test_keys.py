"""API keys: made once, shown once, known by their hash, and revoked for good."""

import asyncio

import pytest

from batchline.governance import keys
from batchline.governance.keys import InvalidKeyRequest
from batchline.model import DEFAULT_TENANT, ApiKey, Role
from batchline.store import keys as stored
from batchline.store.session import Session
from tests.support.builders import sql


async def test_a_key_is_known_by_its_secret_and_by_nothing_else(db: Session) -> None:
    key, secret = await keys.create(db, "mine", "acme", Role.APPROVER)
    assert await keys.authenticate(db, secret) == key
    for wrong in (secret[:-1], secret + "x", secret.upper(), secret.removeprefix("bl-"), "", "bl-", "é"):
        assert await keys.authenticate(db, wrong) is None, wrong


async def test_the_secret_is_stored_nowhere(db: Session) -> None:
    key, secret = await keys.create(db, "mine")
    ((row,),) = await sql(db, "SELECT api_keys::text FROM batchline.api_keys")
    assert secret not in row
    assert secret[len(key.hint) :] not in row
    assert len(secret) == len("bl-") + 43, "256 random bits"


async def test_a_revoked_key_opens_nothing_and_stays_listed(db: Session) -> None:
    key, secret = await keys.create(db, "mine")
    assert await keys.revoke(db, key.id, "emil") is not None
    assert await keys.revoke(db, key.id, "emil") is None, "it cannot be revoked twice"
    assert await keys.authenticate(db, secret) is None
    (listed,) = await stored.list_all(db)
    assert listed.id == key.id
    assert listed.revoked_at is not None


async def test_servers_that_start_at_once_make_one_first_key(database_url: str) -> None:
    async def first() -> tuple[ApiKey, str] | None:
        async with Session(database_url, "test") as db:
            return await keys.create_first(db)

    made = [key for key in await asyncio.gather(*(first() for _ in range(10))) if key]
    ((key, _),) = made
    assert (key.tenant, key.role) == (DEFAULT_TENANT, Role.ADMIN)
    assert await first() is None


@pytest.mark.parametrize(
    ("name", "tenant"), [("", "a"), ("x\n", "a"), ("x" * 201, "a"), ("x", ""), ("x", "a b")]
)
async def test_a_name_or_tenant_that_would_confuse_people_is_refused(
    db: Session, name: str, tenant: str
) -> None:
    with pytest.raises(InvalidKeyRequest):
        await keys.create(db, name, tenant)
