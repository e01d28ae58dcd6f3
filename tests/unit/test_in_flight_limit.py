"""How time-outs lower the number in flight at an upstream, how answers raise it, and what counts."""

import asyncio

from batchline.model import Claim, Item, RunSettings
from batchline.model.ids import new_id
from batchline.upstreams.in_flight_limit import InFlightLimit

CLAIM = Claim(1, 1, new_id(), 1, None, 1, "/v1/chat/completions", "m", "m", 60.0, RunSettings())


def an_item(number: int = 1) -> Item:
    return Item(CLAIM, number - 1, number, b"q", b"{}")


def time_out(
    limit: InFlightLimit, number: int = 1, *, sent_in: int | None = None, in_flight: int = 64
) -> bool:
    return limit.timed_out(an_item(number), limit.round if sent_in is None else sent_in, in_flight)


def test_time_outs_of_one_round_halve_the_limit_once() -> None:
    limit = InFlightLimit(64)
    assert [time_out(limit, number, sent_in=0) for number in range(1, 65)] == [False] * 64
    assert limit.value == 32


def test_what_is_sent_after_a_cut_halves_the_limit_again() -> None:
    limit, values = InFlightLimit(64), list[int]()
    for _ in range(7):
        time_out(limit, in_flight=limit.value)
        values.append(limit.value)
    assert values == [32, 16, 8, 4, 2, 1, 1]


def test_the_number_in_flight_is_halved_not_the_slots_that_are_free() -> None:
    limit = InFlightLimit(64)
    time_out(limit, in_flight=10)
    assert limit.value == 5


def test_a_time_out_alone_counts_and_lowers_nothing() -> None:
    limit = InFlightLimit(64)
    assert time_out(limit, in_flight=1)
    assert limit.value == 64


def test_a_round_of_answers_raises_the_limit_by_one_up_to_its_maximum() -> None:
    limit, values = InFlightLimit(8), list[int]()
    time_out(limit, in_flight=8)
    limit.forget(an_item())
    for _ in range(4 + 5 + 6 + 7):
        assert limit.adapting
        limit.answered(an_item(2), limit.round)
        values.append(limit.value)
    assert values == [4] * 3 + [5] * 5 + [6] * 6 + [7] * 7 + [8]
    assert not limit.adapting, "then nothing more is counted"


def test_a_line_that_always_times_out_is_exempt_a_few_times_only() -> None:
    limit = InFlightLimit(64)
    assert [time_out(limit, 7) for _ in range(10)] == [False] * 8 + [True] * 2
    assert not time_out(limit, 8), "another line is another matter"


def test_of_many_lines_that_timed_out_the_oldest_are_forgotten() -> None:
    limit = InFlightLimit(64)
    assert not any(time_out(limit, number) for number in range(1, 10_100))


def test_a_line_that_was_answered_is_not_remembered() -> None:
    limit = InFlightLimit(64)
    for _ in range(8):
        time_out(limit, 7)
    limit.answered(an_item(7), limit.round)
    assert not time_out(limit, 7)


def test_a_new_maximum_holds_at_once_unless_time_outs_have_lowered_the_limit() -> None:
    limit = InFlightLimit(8)
    limit.resize(16)
    assert limit.value == 16
    time_out(limit, in_flight=16)
    limit.resize(32)
    assert (limit.value, limit.maximum, limit.adapting) == (8, 32, True)
    limit.resize(4)
    assert limit.value == 4


async def test_a_free_slot_goes_to_the_request_that_waited_longest() -> None:
    limit, order = InFlightLimit(2), list[str]()
    limit.in_flight = 2

    async def wait(name: str) -> None:
        await limit.enter()
        order.append(name)

    waits = {name: asyncio.create_task(wait(name)) for name in ("first", "cancelled", "second", "third")}
    await asyncio.sleep(0)
    waits["cancelled"].cancel()
    limit.leave()
    limit.leave()
    await asyncio.gather(waits["first"], waits["second"])
    assert (order, limit.in_flight) == (["first", "second"], 2)
    limit.resize(3)
    await waits["third"]
    assert limit.in_flight == 3


async def test_a_slot_that_comes_to_a_cancelled_request_is_free_again() -> None:
    limit = InFlightLimit(1)
    limit.in_flight = 1
    waiting = asyncio.create_task(limit.enter())
    await asyncio.sleep(0)
    limit.leave()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert limit.in_flight == 0
