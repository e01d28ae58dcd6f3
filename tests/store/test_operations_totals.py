"""What is counted of all operations, over all workers: exactly, and without reading the past."""

import asyncio

from batchline.governance import changes
from batchline.model import ParentStatus
from batchline.store import doctor, migrate, operations
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, finalize, on, read, run_to_the_end, sql
from tests.support.governance import ANNA, BERT, count, end_all, is_sound, now, some_rules, submit, work


async def totals(db: Session) -> dict[str, tuple[int, int, int]]:
    return {name: (done, bad, never) for name, done, bad, never in await operations.totals(db)}


async def test_children_count_from_the_moment_they_end_and_once_for_all(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 4)
    assert await totals(db) == {"resize": (0, 0, 0)}
    await work(db, failures={1, 2}, limit=3)
    assert await totals(db) == {"resize": (1, 2, 0)}, "while it runs"
    await work(db, end=False)
    assert await totals(db) == {"resize": (2, 2, 0)}, "while its files are written"
    await end_all(db)
    assert await totals(db) == {"resize": (2, 2, 0)}, "when it has ended"
    await changes.retry(rules, db, ANNA, batch.id)
    assert await totals(db) == {"resize": (2, 2, 0)}, "what is tried again has failed all the same"
    await work(db, failures={1})
    assert (await now(db, batch)).status is ParentStatus.PARTIAL_SUCCESS
    assert await totals(db) == {"resize": (3, 3, 0)}
    await changes.retry(rules, db, ANNA, batch.id)
    await work(db)
    assert await totals(db) == {"resize": (4, 3, 0)}
    await is_sound(db)


async def test_children_that_never_ran_count_too(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 3)
    await changes.cancel(db, ANNA, batch.id)
    assert await totals(db) == {"resize": (0, 0, 3)}
    await end_all(db)
    assert await totals(db) == {"resize": (0, 0, 3)}


async def test_a_batch_lasts_until_its_first_end_and_is_timed_once(db: Session) -> None:
    rules = some_rules()
    batches = [await submit(db, rules, ANNA, 1) for _ in range(3)]
    for batch, seconds in zip(batches, (0, 600, 100_000), strict=True):
        await sql(
            db,
            "UPDATE batchline.batches SET created_at = now() - make_interval(secs => %(ago)s)"
            " WHERE id = %(id)s",
            ago=seconds,
            id=batch.id,
        )
    await work(db, failures={1})
    (lasted,) = await operations.durations(db)
    assert (lasted.operation, lasted.batches) == ("resize", 3)
    assert 100_600 <= lasted.seconds < 101_000
    assert [lasted.within(bound) for bound in (300, 900, 86_400, float("inf"))] == [1, 2, 2, 3]
    await changes.retry(rules, db, ANNA, batches[0].id)
    await work(db)
    assert await operations.durations(db) == [lasted]


async def test_batches_that_end_at_once_are_all_counted(database_url: str) -> None:
    sessions = [Session(database_url, f"{nth}") for nth in range(8)]
    for _ in range(24):
        await submit(sessions[0], some_rules(), BERT, 2)
    await work(sessions[0], failures={2}, end=False)
    over = [row[0] for row in await sql(sessions[0], "SELECT id FROM batchline.batches")]

    async def end(nth: int) -> None:
        for batch_id in over[nth::8]:
            await finalize(sessions[nth], a_worker(), await read(sessions[nth], batch_id))

    await asyncio.gather(*(end(nth) for nth in range(8)))
    assert await totals(sessions[0]) == {"resize": (24, 24, 0)}
    (lasted,) = await operations.durations(sessions[0])
    assert lasted.batches == 24
    await is_sound(sessions[0])
    for session in sessions:
        await session.close()


async def test_ordinary_batches_touch_no_totals(db: Session) -> None:
    batch = await a_batch(db, 3)
    worker = a_worker()
    await run_to_the_end(db, worker)
    await finalize(db, worker, batch)
    assert await operations.totals(db) == []
    assert await count(db, "operation_totals") == 0
    assert await count(db, "operation_durations") == 0


async def test_the_doctor_finds_totals_that_are_not_what_was_added(db: Session) -> None:
    await submit(db, some_rules(), ANNA, 2)
    await work(db)
    await is_sound(db)
    await sql(db, "UPDATE batchline.operation_totals SET succeeded = succeeded + 1")
    assert [finding.check for finding in (await doctor.examine(db)).findings] == ["totals"]


def test_a_migration_counts_what_there_was_before(database_url: str) -> None:
    """Ended, opened again by a retry, and still running: down and up, the totals are the same."""

    async def before(db: Session) -> tuple[object, ...]:
        rules = some_rules()
        await submit(db, rules, ANNA, 3)
        again = await submit(db, rules, ANNA, 2)
        cancelled = await submit(db, rules, ANNA, 2)
        await changes.cancel(db, ANNA, cancelled.id)
        await work(db, failures={2})
        await changes.retry(rules, db, ANNA, again.id)
        await submit(db, rules, BERT, 5)
        await work(db, limit=2, end=False)
        return await seen(db)

    async def seen(db: Session) -> tuple[object, ...]:
        return (
            await operations.totals(db),
            [
                (each.operation, each.batches, each.within(60), round(each.seconds, 3))
                for each in await operations.durations(db)
            ],
        )

    async def after(db: Session) -> tuple[object, ...]:
        found = await seen(db)
        while await work(db):
            pass
        await is_sound(db)
        return found

    expected = on(database_url, before)
    migrate.down(database_url, "0005")
    migrate.up(database_url)
    assert on(database_url, after) == expected
