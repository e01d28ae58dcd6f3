"""Following a batch: lines are given in input order as soon as all lines before them have ended."""

import asyncio
import json
from contextlib import aclosing

import pytest

from batchline.cli.following import followed_lines
from batchline.model import Completed, Failed, Item
from batchline.store import batches, spans
from batchline.store.following import Following
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, completed, sql, take


async def test_a_gap_in_any_lane_holds_back_all_lines_after_it(db: Session) -> None:
    batch, worker = await a_batch(db, {"a": 6, "b": 3}), a_worker()
    items = {item.line_no: item for item in await take(db, worker, 9)}
    following = Following(db, batch.id)
    assert await following.finished() == 0
    for settled, expected in [((2, 3), 0), ((1,), 3), ((5, 6, 7, 8), 3), ((9,), 3), ((4,), 9)]:
        await spans.settle(db, worker.id, [completed(items[n]) for n in settled])
        assert await following.finished() == expected, f"after {settled}"
        assert await Following(db, batch.id).finished() == expected, "a new follower should see the same"


async def test_empty_lines_of_the_input_are_no_gaps(db: Session) -> None:
    batch, worker = await a_batch(db, {"a": 10, "b": 2}), a_worker()
    await sql(db, "UPDATE batchline.lines SET line_no = line_no + 100 WHERE line_no > 4")
    items = {item.line_no: item for item in await take(db, worker, 12)}
    following = Following(db, batch.id)
    await spans.settle(db, worker.id, [completed(items[n]) for n in (1, 2, 3, 4)])
    assert await following.finished() == 104
    await spans.settle(db, worker.id, [completed(item) for n, item in items.items() if n > 4])
    assert await following.finished() == max(items)


def answered(item: Item) -> Completed | Failed:
    line = b'{"id":"%b"}' % item.request_id.encode()
    return Failed(item, line, 400) if item.line_no == 2 else Completed(item, 200, line)


@pytest.mark.parametrize("ending", ["complete", "cancel", "stop"])
async def test_followed_lines_are_in_input_order_and_complete_at_the_end(
    database_url: str, db: Session, ending: str
) -> None:
    batch, worker, over = await a_batch(db, 12), a_worker(), asyncio.Event()
    items = {item.line_no: item for item in await take(db, worker, 12 if ending == "complete" else 8)}

    async def end(*line_nos: int) -> None:
        await spans.settle(db, worker.id, [answered(items[line_no]) for line_no in line_nos])

    async with (
        Session(database_url, "follow") as own,
        aclosing(followed_lines(own, batch.id, ["output", "errors"], over)) as blocks,
    ):
        await end(1, 2, 4)
        found = [await anext(blocks), await anext(blocks)]
        waiting = asyncio.ensure_future(anext(blocks))
        await end(3)
        found.append(await waiting)
        await end(7, 8)
        if ending == "complete":
            await end(5, 6, 9, 10, 11, 12)
        if ending == "cancel":
            await end(5, 6)
            await batches.close(db, batch.id, "cancel")
        over.set()
        found += [block async for block in blocks]
    numbers = [int(json.loads(line)["id"].rpartition("_")[2]) for line in b"".join(found).splitlines()]
    assert numbers == list(range(1, 5 if ending == "stop" else 13))


async def test_lines_of_one_kind_leave_the_others_out(db: Session) -> None:
    batch, worker, over = await a_batch(db, 3), a_worker(), asyncio.Event()
    await spans.settle(db, worker.id, [answered(item) for item in await take(db, worker, 3)])
    over.set()
    async with aclosing(followed_lines(db, batch.id, ["output"], over)) as blocks:
        assert len(b"".join([block async for block in blocks]).splitlines()) == 2
