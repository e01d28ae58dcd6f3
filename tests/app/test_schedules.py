"""`@app.schedule`: what it refuses, and the batches that it submits."""

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any

import pytest

from batchline import Batchline, InvalidApp
from batchline.model import DEFAULT_TENANT, Batch
from batchline.store import batches, schedules
from batchline.store.schedules import StoredSchedule
from batchline.store.session import Session
from tests.support.builders import sql, until

EVERY_SECOND = "* * * * * *"


async def row(db: Session) -> StoredSchedule | None:
    return next(iter(await schedules.listed(db, DEFAULT_TENANT)), None)


async def first_batch(db: Session) -> Batch:
    """The oldest one, when it has ended."""
    found: list[Batch] = []

    async def has_ended() -> bool:
        found[:] = (await batches.list_newest(db, DEFAULT_TENANT, limit=1000))[-1:]
        return bool(found) and found[0].ended_at is not None

    await until(has_ended)
    return found[0]


async def test_a_worker_submits_the_items_of_the_function_and_runs_them(app: Batchline, db: Session) -> None:
    @app.operation
    async def shout(text: str) -> str:
        return text.upper()

    @app.schedule(
        EVERY_SECOND,
        shout,
        timezone="Asia/Kolkata",
        key=lambda text: f"key-{text}",
        priority=7,
        metadata={"team": "ops"},
    )
    async def often(at: datetime) -> list[str]:
        return ["a", f"at {at:%z}"]

    async with app.worker():
        found = await first_batch(db)
    batch = await app.batch(f"batch_{found.id.hex}")
    results = [(result.key, result.value) async for result in batch.results()]
    assert results == [("key-a", "A"), ("key-at +0530", "AT +0530")]
    assert found.metadata is not None
    at = datetime.fromisoformat(found.metadata["scheduled_at"])
    assert found.metadata == {"team": "ops", "schedule": "often", "scheduled_at": at.isoformat()}
    assert (found.priority, found.tenant) == (7, DEFAULT_TENANT)
    assert found.resume_key is not None
    assert found.resume_key.startswith("schedule often ")


async def test_items_may_come_from_a_generator(app: Batchline, db: Session) -> None:
    @app.operation
    async def double(number: int) -> int:
        return 2 * number

    @app.schedule(EVERY_SECOND, double)
    async def numbers(at: datetime) -> AsyncIterator[int]:
        for number in range(2_000):
            yield number

    async with app.worker():
        assert (await first_batch(db)).completed == 2_000


async def test_no_items_are_a_batch_that_ends_at_once_and_none_is_no_batch(
    app: Batchline, db: Session
) -> None:
    @app.operation
    async def double(number: int) -> int:
        return 2 * number

    calls = 0

    @app.schedule(EVERY_SECOND, double)
    async def empty(at: datetime) -> Iterable[int] | None:
        nonlocal calls
        calls += 1
        return [] if calls == 1 else None

    async with app.worker():
        assert (await first_batch(db)).total == 0

        async def is_skipped() -> bool:
            stored = await row(db)
            return stored is not None and stored.last_at is not None and stored.last_batch_id is None

        await until(is_skipped)
    assert await sql(db, "SELECT count(*) FROM batchline.batches") == [(1,)]


async def test_an_item_that_does_not_match_leaves_no_batch_and_is_reported(
    app: Batchline, db: Session
) -> None:
    @app.operation
    async def double(number: int) -> int:
        return 2 * number

    @app.schedule(EVERY_SECOND, double)
    async def wrong(at: datetime) -> list[Any]:
        return [1, 2, "three"]

    async with app.worker():

        async def has_failed() -> bool:
            stored = await row(db)
            return stored is not None and stored.last_error is not None

        await until(has_failed)
    stored = await row(db)
    assert stored is not None
    assert stored.last_error is not None
    assert stored.last_error.startswith("InvalidItem: item 2: ")
    assert await sql(
        db, "SELECT (SELECT count(*) FROM batchline.batches), count(*) FROM batchline.lines"
    ) == [(0, 0)]


async def test_a_worker_runs_schedules_of_its_operations_only(app: Batchline, db: Session) -> None:
    @app.operation
    async def mine(number: int) -> int:
        return number

    @app.operation
    async def other(number: int) -> int:
        return number

    @app.schedule(EVERY_SECOND, mine)
    async def ours(at: datetime) -> list[int]:
        return [1]

    @app.schedule(EVERY_SECOND, other)
    async def theirs(at: datetime) -> list[int]:
        return [1]

    async with app.worker(operations=[mine]):
        await first_batch(db)
    assert [each.name for each in await schedules.listed(db, DEFAULT_TENANT)] == ["ours"]


async def test_whoever_runs_one_batch_only_submits_nothing(app: Batchline, db: Session) -> None:
    @app.operation
    async def double(number: int) -> int:
        return 2 * number

    @app.schedule(EVERY_SECOND, double)
    async def often(at: datetime) -> list[int]:
        return [1]

    assert await app.amap(double, [1, 2]) == [2, 4]
    assert await row(db) is None


@pytest.mark.parametrize(
    ("expression", "keywords", "problem"),
    [
        ("61 * * * *", {}, "bad minute"),
        ("@daily", {}, "five fields"),
        ("* * * * *", {"timezone": "Europe/Atlantis"}, "no time zone 'Europe/Atlantis'"),
        ("* * * * *", {"priority": 1000}, "schedule 'often': priority must be"),
        ("* * * * *", {"name": "Often!"}, "cannot be the name of a schedule"),
        ("* * * * *", {"hold": True}, "no keyword 'hold'"),
        ("* * * * *", {"surprise": True}, "no keyword 'surprise'"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused_when_it_is_defined(
    expression: str, keywords: dict[str, Any], problem: str
) -> None:
    app = Batchline()

    @app.operation
    async def double(number: int) -> int:
        return 2 * number

    async def often(at: datetime) -> list[int]:
        return [1]

    with pytest.raises(InvalidApp, match=problem):
        app.schedule(expression, double, **keywords)(often)


def test_an_operation_of_another_app_is_refused() -> None:
    other = Batchline()

    @other.operation
    async def double(number: int) -> int:
        return 2 * number

    with pytest.raises(InvalidApp, match="no operation 'double'"):
        Batchline().schedule("* * * * *", double)
