"""Sessions of browsers: stored as hashes, ended by time, by signing out, and with their key."""

import asyncio

from batchline.governance import keys
from batchline.model import ApiKey
from batchline.store import browser_sessions
from batchline.store.session import Session
from tests.support.builders import sql


async def add(db: Session, name: bytes, key: ApiKey, *, maximum: int = 9) -> None:
    assert await browser_sessions.add(db, name, key.id, lifetime=60.0, maximum=maximum) is not None


async def test_a_session_is_found_until_it_is_dropped(db: Session) -> None:
    key, _ = await keys.create(db, "anna", "acme")
    await add(db, b"one", key)

    found = await browser_sessions.find(db, b"one")
    assert found is not None
    assert (found.key.name, found.key.tenant) == ("anna", "acme")
    assert await browser_sessions.find(db, b"two") is None
    await browser_sessions.drop(db, b"one")
    assert await browser_sessions.find(db, b"one") is None


async def test_a_session_ends_when_it_expires_and_when_its_key_is_revoked(db: Session) -> None:
    anna, _ = await keys.create(db, "anna")
    bert, _ = await keys.create(db, "bert")
    await add(db, b"annas", anna)
    await add(db, b"berts", bert)
    assert await browser_sessions.still_good(db, [b"annas", b"berts", b"x"]) == {b"annas", b"berts"}
    await sql(
        db,
        "UPDATE batchline.browser_sessions SET expires_at = now() - interval '1 s' WHERE key_id = %(key)s",
        key=anna.id,
    )
    await keys.revoke(db, bert.id, "admin")

    assert await browser_sessions.find(db, b"annas") is None
    assert await browser_sessions.find(db, b"berts") is None
    assert await browser_sessions.still_good(db, [b"annas", b"berts"]) == set()


async def test_a_revoked_key_begins_no_session(db: Session) -> None:
    key, _ = await keys.create(db, "anna")
    await keys.revoke(db, key.id, "admin")

    assert await browser_sessions.add(db, b"one", key.id, lifetime=60, maximum=9) is None


async def test_a_sign_in_waits_for_a_revocation_and_then_fails(database_url: str) -> None:
    async with Session(database_url, "one") as one, Session(database_url, "other") as other:
        key, _ = await keys.create(one, "anna")
        async with one.transaction() as connection:
            await connection.execute("UPDATE batchline.api_keys SET revoked_at = now()")
            signing_in = asyncio.create_task(
                browser_sessions.add(other, b"one", key.id, lifetime=60, maximum=9)
            )
            waiting = "SELECT FROM pg_locks WHERE NOT granted"
            # A lock that is waited for has no event.
            while not await (await connection.execute(waiting)).fetchall():  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert await signing_in is None


async def test_the_oldest_sessions_of_a_key_and_expired_ones_are_deleted(db: Session) -> None:
    anna, _ = await keys.create(db, "anna")
    bert, _ = await keys.create(db, "bert")
    await add(db, b"berts", bert)
    await sql(db, "UPDATE batchline.browser_sessions SET expires_at = now() - interval '1 s'")
    for name in (b"1", b"2", b"3"):
        await add(db, name, anna, maximum=2)

    assert await browser_sessions.find(db, b"1") is None
    assert await browser_sessions.find(db, b"3") is not None
    assert await sql(db, "SELECT count(*) FROM batchline.browser_sessions") == [(2,)]
