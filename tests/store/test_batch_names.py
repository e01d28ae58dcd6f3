"""Batches by short ids, by age and by the names of their files; sizes; what prune finds."""

from datetime import timedelta
from uuid import UUID

from batchline.model import DEFAULT_TENANT
from batchline.store import batch_names, batches, disk_use
from batchline.store.batches import NewBatch
from batchline.store.session import Session
from tests.support.builders import a_batch, a_file, a_worker, kill, sql, take

FILLER = "0" * 19


async def batches_with(db: Session, *ids: str) -> list[UUID]:
    """Batches whose ids begin with these 13 digits."""
    made = [UUID(f"{digits}{FILLER}") for digits in ids]
    for batch_id in made:
        file_id = await a_file(db, {"m": 1})
        settings = (await a_batch(db, 1)).settings
        await batches.create(db, NewBatch(batch_id, DEFAULT_TENANT, file_id, "24h", 3600.0, settings))
    return made


async def test_a_short_id_is_as_long_as_it_takes_to_tell_it_from_all_others(db: Session) -> None:
    one, two, far = await batches_with(db, "0000000000aa7", "0000000000ab7", "1000000000007")
    short = await batch_names.short(db, [one, two, far])
    assert short == {one: "0000000000aa", two: "0000000000ab", far: "10000000"}
    for batch_id, digits in short.items():
        assert await batch_names.matching(db, digits, 9, tenant=None) == [batch_id]
    assert await batch_names.matching(db, "0000000000a", 9, tenant=None) == [one, two]
    assert await batch_names.matching(db, "0000000000a", 9, tenant=DEFAULT_TENANT) == [one, two]
    assert await batch_names.matching(db, "0000000000a", 9, tenant="other") == []
    assert await batch_names.matching(db, "ffff", 9, tenant=None) == []
    assert len(await batch_names.matching(db, "0", 1, tenant=None)) == 1


async def test_the_nth_newest_batch_is_of_one_tenant_and_not_governed(db: Session) -> None:
    first, second = await a_batch(db), await a_batch(db)
    await a_batch(db, tenant="other")
    newest = [await batch_names.nth_newest(db, DEFAULT_TENANT, nth, governed=False) for nth in (1, 2, 3)]
    assert newest == [second.id, first.id, None]
    assert await batch_names.nth_newest(db, DEFAULT_TENANT, 1, governed=True) is None


async def test_a_batch_is_held_while_a_live_worker_has_items_of_it(db: Session) -> None:
    batch, worker = await a_batch(db, 2), a_worker()
    assert (await batch_names.origins(db, [batch.id]))[batch.id].held is False
    await take(db, worker, 1)
    origin = (await batch_names.origins(db, [batch.id]))[batch.id]
    assert (origin.filename, origin.held) == ("input.jsonl", True)
    await kill(db, worker)
    assert (await batch_names.origins(db, [batch.id]))[batch.id].held is False


async def test_only_batches_that_ended_long_enough_ago_are_found(db: Session) -> None:
    old, young, running = await a_batch(db), await a_batch(db), await a_batch(db)
    other = await a_batch(db, tenant="other")
    for batch, hours in ((old, 48), (young, 1), (other, 48)):
        await sql(
            db,
            """
            UPDATE batchline.batches
            SET finalizing_at = now(), completed_at = now() - make_interval(hours => %(h)s)
            WHERE id = %(id)s
            """,
            h=hours,
            id=batch.id,
        )
    assert await batches.ended_before(db, DEFAULT_TENANT, timedelta(days=1)) == [old.id]
    assert set(await batches.ended_before(db, DEFAULT_TENANT, timedelta(0))) == {old.id, young.id}
    assert running.id not in await batches.ended_before(db, DEFAULT_TENANT, timedelta(0))


async def test_sizes_are_of_tables_and_files(db: Session) -> None:
    assert await disk_use.largest_batches(db, 10) == []
    batch = await a_batch(db, 3)
    await sql(db, "UPDATE batchline.files SET bytes = 1000")
    (found,) = await disk_use.largest_batches(db, 10)
    assert (found.id, found.filename, found.lines, found.input_bytes, found.output_bytes) == (
        *(batch.id, "input.jsonl", 3, 1000, 0),
    )
    tables = await disk_use.table_sizes(db)
    assert tables["lines"] > 0
    assert list(tables.values()) == sorted(tables.values(), reverse=True)
    assert await disk_use.stored(db) == (0, 0)
    await sql(db, "UPDATE batchline.files SET object_key = 'inputs/x'")
    assert await disk_use.stored(db) == (1, 1000)
