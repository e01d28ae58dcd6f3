"""An upstream decides whether and when to send, without knowing how requests are made."""

import asyncio

import pytest

from batchline.model.concurrency import AUTO
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.retry import Backoff
from batchline.upstreams.timing import Timing
from batchline.upstreams.upstream import Upstream
from tests.support.http_executor import an_item, unreachable

AN_ITEM = an_item(None)


class Clock:
    """Time passes only in timers, and there at once."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def timer(self, seconds: float) -> asyncio.Timeout:
        self.waits.append(seconds)
        self.now += seconds
        return asyncio.timeout(0)


def an_upstream(clock: Clock, stopping: asyncio.Event | None = None) -> Upstream:
    timing = Timing(clock=lambda: clock.now, random=lambda: 1.0, timer=clock.timer)
    return Upstream("handlers", 4, stopping or asyncio.Event(), timing, Backoff(1.0, 8.0))


def test_an_upstream_that_answers_limits_nothing() -> None:
    upstream = an_upstream(Clock())
    upstream.answered(100.0)
    assert not upstream.limited


async def test_after_a_refusal_requests_leave_one_by_one() -> None:
    upstream = an_upstream(clock := Clock())
    upstream.refused(started=clock.now, requested=2.0)
    assert upstream.limited
    assert await upstream.may_send(lambda: "me", AN_ITEM)
    assert clock.waits == [2.0]
    await upstream.may_send(lambda: "me", AN_ITEM)
    assert len(clock.waits) == 2


async def test_a_pace_is_forgotten_a_minute_after_the_last_refusal() -> None:
    upstream = an_upstream(clock := Clock())
    upstream.refused(clock.now, 0.0)
    clock.now += 61.0
    assert await upstream.may_send(lambda: "me", AN_ITEM)
    assert not upstream.limited
    assert clock.waits == []


async def test_a_model_whose_limit_cannot_fall_gets_a_pace_whatever_the_limits_of_others() -> None:
    timing = Timing(clock=lambda: 100.0)
    upstream = Upstream("http://h/v1", AUTO, asyncio.Event(), timing, Backoff(1.0, 8.0))
    lowest, other = upstream.limit_of("a"), upstream.limit_of("b")
    lowest.resize(1)
    assert other.value > 1
    upstream.refused(100.0, 0.0, "b")
    assert not upstream.limited, "fewer requests at once may be all that it takes"
    upstream.refused(100.0, 0.0, "a")
    assert upstream.limited


def test_limits_that_are_not_in_use_are_forgotten_if_there_are_many() -> None:
    upstream = Upstream("http://h/v1", AUTO, asyncio.Event(), Timing(), Backoff(1.0, 8.0))
    busy, recent = upstream.limit_of("busy"), upstream.limit_of("recent")
    busy.in_flight = 1
    for number in range(2_000):
        upstream.limit_of(f"model {number}")
        assert upstream.limit_of("recent") is recent
    assert upstream.limit_of("busy") is busy
    assert len(upstream.limits) == 1_000


async def test_an_outage_lasts_from_the_first_failure_to_the_next_answer() -> None:
    upstream = an_upstream(clock := Clock())
    assert upstream.unreached(clock.now, "no route") == 1.0
    assert (upstream.limited, upstream.view().reason) == (True, "no route")
    assert await upstream.may_send(lambda: "me", AN_ITEM)
    assert clock.waits == [1.0]
    upstream.reached()
    assert (upstream.limited, upstream.view().reason) == (False, "")


@pytest.mark.parametrize("names", [(None, None), ("me", "another"), ("me", None)])
async def test_a_worker_that_lost_its_lease_meanwhile_sends_nothing(
    names: tuple[str | None, str | None],
) -> None:
    upstream = an_upstream(clock := Clock())
    upstream.unreached(clock.now, "away")
    name = iter(names)
    assert not await upstream.may_send(lambda: next(name), AN_ITEM)


async def test_nothing_waits_for_an_upstream_once_the_worker_stops() -> None:
    stopping = asyncio.Event()
    upstream = an_upstream(clock := Clock(), stopping)
    upstream.unreached(clock.now, "away")
    stopping.set()
    assert not await upstream.may_send(lambda: "me", AN_ITEM)


def test_there_is_one_upstream_for_each_url_and_its_limit_can_change() -> None:
    upstreams = Upstreams()
    upstream = upstreams.get("http://a", 8)
    assert upstreams.get("http://a") is upstream is not upstreams.get("http://b")
    assert upstream.limit.value == 8
    assert upstreams.get("HTTP://A:80/") is upstream, "one upstream, however it is written"
    upstreams.get("http://a", 16)
    assert upstream.limit.value == 16


async def test_only_upstreams_that_cannot_be_reached_are_listed_and_without_their_secrets() -> None:
    upstreams = Upstreams()
    upstreams.get("http://b").answered(0.0)
    upstreams.get("http://user:password@a?key=1").unreached(0.0, "no route")
    assert unreachable(upstreams) == {"http://a": "no route"}


async def test_a_view_shows_what_is_in_flight_how_long_answers_take_and_what_limits() -> None:
    upstream = an_upstream(clock := Clock())
    assert (upstream.view().p50, upstream.view().oldest, upstream.view().full) == (None, None, False)
    upstream.sent.update({1: clock.now, 2: clock.now + 1})
    upstream.limit.in_flight = 4
    clock.now += 3
    upstream.answered(started=clock.now - 2)
    seen = upstream.view()
    assert (seen.in_flight, seen.limit, seen.max_limit, seen.full) == (2, 4, 4, True)
    assert (seen.p50, seen.p95, seen.oldest) == (2.0, 2.0, 3.0)
    assert (seen.rate_limit, seen.unavailable_for) == (None, None)
    upstream.refused(started=clock.now, requested=20.0)
    assert upstream.view().rate_limit is None, "nothing waits yet"
    pace = upstream.admission.pace
    assert pace is not None
    async with pace.line:
        assert (upstream.view().rate_limit, upstream.view().paused_for) == (5.0, 20.0)
    upstream.unreached(clock.now, "no route")
    clock.now += 0.25
    seen = upstream.view()
    assert (seen.unavailable_for, seen.next_try, seen.reason) == (0.25, 0.75, "no route")
    assert not seen.connects
    assert seen.last_try == 0.25
    upstream.unreached(clock.now, "no route")
    assert (upstream.view().unavailable_for, upstream.view().last_try) == (0.25, 0.0)
    upstream.reached()
    assert upstream.view().unavailable_for is None
