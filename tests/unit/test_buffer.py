"""The buffer of a producer: how many items it asks for, and who gets those that it has."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from batchline.config.settings import WorkerSettings
from batchline.model import Claim, Item, RunSettings
from batchline.model.ids import new_id
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.upstreams.memory import BodyMemory
from batchline.worker.batch_limits import BatchLimits, OneBatchLimit
from batchline.worker.buffer import Buffer
from batchline.worker.rate import Rate
from batchline.worker.slots import Slots

PATIENCE = 60.0
SLOTS = 4
CLAIM = Claim(1, 1, new_id(), 1, None, 1, "/v1/chat/completions", "m", "m", 60.0, RunSettings())


def an_item(number: int = 1, body: bytes = b"{}", left_out: int = 0) -> Item:
    return Item(CLAIM, number - 1, number, b"q", body, left_out)


def a_buffer(*, per_second: float = 0.0, max_bytes: int = 2**20) -> tuple[Buffer, BodyMemory]:
    now = [0.0]
    rate, memory = Rate(lambda: now[0]), BodyMemory(2**29)
    rate.count, now[0] = round(per_second), 1.0
    return Buffer(WorkerSettings(), rate, Slots(InFlightLimit(SLOTS)), memory, max_bytes), memory


async def test_it_wants_its_free_slots_only_while_the_rate_is_unknown() -> None:
    buffer, _ = a_buffer()
    assert buffer.wanted() == SLOTS


async def test_it_wants_two_seconds_of_work_at_the_measured_rate() -> None:
    buffer, _ = a_buffer(per_second=100)
    assert buffer.wanted() == SLOTS + 2 * 100
    buffer.put([an_item(number) for number in range(1, 51)])
    assert buffer.wanted() == SLOTS + 2 * 100 - 50


async def test_it_wants_more_once_half_of_its_items_are_taken() -> None:
    buffer, _ = a_buffer(per_second=10)
    buffer.put([an_item(number) for number in range(1, 21)])
    refill = asyncio.create_task(buffer.needs_refill())
    for _ in range(9):
        buffer.pop()
    await asyncio.sleep(0)
    assert not refill.done()
    buffer.pop()
    async with asyncio.timeout(PATIENCE):
        await refill


async def test_it_wants_more_for_a_taker_that_waits_once_a_lowered_limit_allows_more() -> None:
    limit = InFlightLimit(SLOTS)
    slots = Slots(limit)
    buffer = Buffer(WorkerSettings(), Rate(lambda: 0.0), slots, BodyMemory(2**29), 2**20)
    buffer.put([an_item(number) for number in range(1, SLOTS)])
    running = [send(buffer, slots) for _ in range(SLOTS - 1)]
    taker = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    limit.resize(1)
    assert not buffer.wanted()
    buffer.mark_full()
    for item in running:
        end(buffer, slots, item)
    assert buffer.wanted() == 1
    assert buffer.refilling
    buffer.close()
    assert await taker is None


async def test_it_wants_nothing_until_there_is_room_for_the_next_items() -> None:
    buffer, memory = a_buffer(max_bytes=1000)
    item = an_item(body=b"x" * 600)
    buffer.put([item], [an_item(2, b"", left_out=500)])
    assert memory.held_requests == 600
    assert buffer.wanted() == 0
    buffer.pop()
    assert buffer.wanted() == 0, "an item in flight still has its bytes"
    buffer.done(item)
    assert buffer.wanted() > 0
    assert memory.held_requests == 0


async def test_an_item_that_is_alone_may_have_any_size() -> None:
    buffer, _ = a_buffer(max_bytes=1000)
    assert buffer.room_for(1) is None
    buffer.put([an_item(body=b"x" * 600)])
    assert buffer.room_for(1) == 400


async def test_items_are_taken_in_order_and_each_by_one_taker() -> None:
    buffer, _ = a_buffer()
    takers = [asyncio.create_task(buffer.take()) for _ in range(2)]
    await asyncio.sleep(0)
    assert buffer.takers == 2
    buffer.put([an_item(1), an_item(2)])
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*takers) == [an_item(1), an_item(2)]


@pytest.mark.parametrize("end", [Buffer.close, lambda buffer: buffer.dismiss(5)])
async def test_a_closed_buffer_and_a_dismissal_end_the_wait_of_a_taker(
    end: Callable[[Buffer], object],
) -> None:
    buffer, _ = a_buffer()
    taker = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    end(buffer)
    async with asyncio.timeout(PATIENCE):
        assert await taker is None


async def test_discarding_one_batch_keeps_the_items_of_others() -> None:
    buffer, memory = a_buffer()
    other = Item(Claim(2, 2, new_id(), 1, None, 1, "/v1", "m", "m", 60.0, RunSettings()), 0, 1, b"q", b"{}")
    buffer.put([an_item(), other])
    assert buffer.discard(CLAIM.batch_id) == [an_item()]
    assert buffer.pop() is other
    assert memory.held_requests == len(other.body)


# Batches with a concurrency of their own


LIMITED = replace(CLAIM, batch_id=new_id(), concurrency=2)


def limited_items(count: int, claim: Claim = LIMITED) -> list[Item]:
    return [Item(claim, number, number + 1, b"q", b"{}") for number in range(count)]


def a_limited_buffer() -> tuple[Buffer, Slots, list[None]]:
    room: list[None] = []
    slots = Slots(InFlightLimit(SLOTS))
    limits = BatchLimits(lambda: room.append(None))
    buffer = Buffer(WorkerSettings(), Rate(lambda: 0.0), slots, BodyMemory(2**29), 2**20, limits)
    return buffer, slots, room


def send(buffer: Buffer, slots: Slots) -> Item:
    item = buffer.pop()
    assert item is not None
    slots.running[id(item)] = item
    return item


def end(buffer: Buffer, slots: Slots, item: Item) -> None:
    del slots.running[id(item)]
    buffer.done(item)


async def test_no_more_lines_of_a_batch_are_given_out_than_its_concurrency_allows() -> None:
    buffer, slots, _ = a_limited_buffer()
    buffer.put(limited_items(3))
    first, _ = send(buffer, slots), send(buffer, slots)
    assert buffer.pop() is None, "two are in flight"
    assert len(buffer) == 1, "but it holds the third"
    end(buffer, slots, first)
    assert send(buffer, slots).ordinal == 2


async def test_a_limited_batch_delays_no_other() -> None:
    buffer, slots, _ = a_limited_buffer()
    buffer.put(limited_items(3))
    assert buffer.limits.full == (LIMITED.batch_id,), "no more of it is claimed"
    assert buffer.wanted() == SLOTS - 2, "its lines that wait take no room from others"
    buffer.put([an_item(1)])
    assert [send(buffer, slots).claim.batch_id for _ in range(3)] == [
        LIMITED.batch_id,
        LIMITED.batch_id,
        CLAIM.batch_id,
    ]


async def test_more_lines_of_a_limited_batch_are_wanted_once_none_waits() -> None:
    buffer, slots, room = a_limited_buffer()
    buffer.put(limited_items(4))
    sent = [send(buffer, slots), send(buffer, slots)]
    room.clear()
    end(buffer, slots, sent[0])
    assert (buffer.limits.full, room) == ((LIMITED.batch_id,), [])
    end(buffer, slots, sent[1])
    assert (buffer.limits.full, room) == ((), [None])


async def test_a_lower_concurrency_counts_what_is_in_flight_and_takes_back_the_rest() -> None:
    buffer, slots, _ = a_limited_buffer()
    buffer.put([an_item(number) for number in range(1, 5)])
    sent = [send(buffer, slots), send(buffer, slots)]
    buffer.change_limit(CLAIM.batch_id, 1)
    assert buffer.batch_limits() == {CLAIM.batch_id: 1}
    assert buffer.pop() is None
    end(buffer, slots, sent[0])
    assert buffer.pop() is None, "one is still in flight, and no more may be"
    end(buffer, slots, sent[1])
    assert send(buffer, slots).ordinal == 2


@pytest.mark.parametrize("limit", [3, None])
async def test_a_higher_concurrency_gives_out_more_at_once(limit: int | None) -> None:
    buffer, slots, _ = a_limited_buffer()
    buffer.put(limited_items(3))
    send(buffer, slots), send(buffer, slots)
    buffer.change_limit(LIMITED.batch_id, limit)
    assert send(buffer, slots).ordinal == 2


async def test_a_claim_brings_the_new_concurrency_of_its_batch() -> None:
    buffer, slots, _ = a_limited_buffer()
    buffer.put(limited_items(3))
    buffer.put(limited_items(1, replace(LIMITED, span_id=2, concurrency=None)))
    assert [send(buffer, slots).ordinal for _ in range(4)] == [0, 1, 2, 0]


async def test_lines_of_a_limited_batch_that_wait_are_given_back_with_the_others() -> None:
    buffer, _, _ = a_limited_buffer()
    buffer.put(limited_items(4))
    assert buffer.spans() == {LIMITED.span_id}
    assert len(buffer.discard(LIMITED.batch_id)) == 4
    assert (len(buffer), buffer.limits.active) == (0, False)


async def test_the_concurrency_of_a_workers_only_batch_is_that_of_its_slots() -> None:
    limit, room = InFlightLimit(SLOTS), list[None]()
    limits = OneBatchLimit(limit, lambda: room.append(None))
    buffer = Buffer(WorkerSettings(), Rate(lambda: 0.0), Slots(limit), BodyMemory(2**29), 2**20, limits)
    buffer.put(limited_items(1, replace(LIMITED, concurrency=10)))
    assert (limit.value, room) == (10, [None])
    assert buffer.wanted() == 9
    buffer.change_limit(LIMITED.batch_id, None)
    assert limit.value == SLOTS, "as many as at the start"
