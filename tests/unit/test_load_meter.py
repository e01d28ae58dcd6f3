"""What a worker measures of its own work: lines in flight, and lines per second of the time it had any."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import cast

import pytest

from batchline.model import Claim, Completed, Deferred, Failed, Item, KeyLoad, RunSettings
from batchline.model.concurrency import AutoConcurrency
from batchline.model.ids import new_id
from batchline.upstreams.concurrency_controller import START
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.worker.load import LoadMeter
from batchline.worker.producer import Producer


class World:
    """A clock, a producer with so many items in flight, and a meter."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slowed = False
        self.outage: str | None = None
        self.limit = InFlightLimit(16)
        self._running: list[Item] = []
        self._meter = LoadMeter(lambda: self.now)

    def running(self) -> Collection[Item]:
        return self._running

    def loads(self) -> list[KeyLoad]:
        return self._meter.loads([cast(Producer, self)])

    def only(self) -> KeyLoad:
        (load,) = self.loads()
        return load

    def in_flight(self, *items: Item) -> None:
        self._running = list(items)

    def finish(self, count: int, key: str = "small", seconds: float = 0.1) -> None:
        done = an_item(key)
        done.stamps.sent, done.stamps.answered = self.now - seconds, self.now
        self._meter.stored([Completed(done, 200, b"{}")] * (count - 1) + [Failed(done, b"{}", 400)])
        self._meter.stored([Deferred(done)])


def an_item(key: str = "small", model: str | None = None) -> Item:
    claim = Claim(1, 1, new_id(), 1, None, 1, "/v1/x", model or key, key, 60.0, RunSettings())
    return Item(claim, 0, 1, b"a", b"{}")


@pytest.fixture
def world() -> World:
    return World()


def test_an_upstream_that_cannot_be_reached_is_reported_with_the_reason(world: World) -> None:
    world.in_flight(an_item())
    world.slowed, world.outage = True, "connection refused"
    load = world.only()
    assert (load.limited, load.unreachable) == (True, "connection refused")
    world.slowed, world.outage = False, None
    load = world.only()
    assert (load.limited, load.unreachable) == (False, None)


def test_the_limit_is_reported_with_what_it_follows(world: World) -> None:
    world.in_flight(an_item())
    load = world.only()
    assert (load.limit, load.ceiling, load.auto, load.signal) == (16, 16, False, "as_set")
    world.limit = InFlightLimit(AutoConcurrency(200))
    load = world.only()
    assert (load.limit, load.ceiling, load.auto, load.signal) == (START, 200, True, "starting")
    world.in_flight()
    assert world.only().limit is None, "of a key that it has nothing for, nobody asks"


def test_an_idle_worker_reports_nothing(world: World) -> None:
    world.now = 5.0
    assert world.loads() == []


def test_lines_are_counted_by_key_and_model_and_the_busiest_come_first(world: World) -> None:
    world.in_flight(an_item("a"), an_item("b"), an_item("b"), an_item("http://x/v1", "b"))
    world.now = 5.0
    assert [(load.key, load.model, load.in_flight) for load in world.loads()] == [
        ("b", "b", 2),
        ("a", "a", 1),
        ("http://x/v1", "b", 1),
    ]


def test_the_rate_is_that_of_finished_lines(world: World) -> None:
    world.in_flight(an_item())
    for _ in range(100):
        world.now += 5.0
        world.finish(50)
        load = world.only()
    assert load.rate == pytest.approx(10.0)
    # It follows a change.
    for _ in range(100):
        world.now += 5.0
        world.finish(10)
        load = world.only()
    assert load.rate == pytest.approx(2.0, rel=0.01)


def test_the_first_report_has_the_whole_rate(world: World) -> None:
    world.in_flight(an_item())
    world.now = 5.0
    world.finish(50)
    assert world.only().rate == pytest.approx(10.0)


def test_time_without_lines_does_not_lower_the_rate(world: World) -> None:
    world.in_flight(an_item())
    world.now = 5.0
    world.finish(50)
    world.loads()
    world.in_flight()
    world.now = 300.0
    load = world.only()
    assert load.in_flight == 0
    assert load.rate == pytest.approx(10.0)
    world.now = 2_000.0
    assert world.loads() == [], "but it is forgotten after a while"


def test_answers_that_come_in_waves_have_a_steady_rate(world: World) -> None:
    """64 requests of ten minutes each: all answers come at once, and then none for ten minutes."""
    world.in_flight(*[an_item()] * 64)
    rates = []
    for wave in range(6):
        for _ in range(120):
            world.now += 5.0
            rates.append(world.only().rate)
        world.finish(64, seconds=600.0)
        assert wave == 0 or all(0.03 < rate < 0.3 for rate in rates[-120:]), rates[-120:]


def test_a_slowed_producer_marks_its_keys(world: World) -> None:
    world.in_flight(an_item("a"))
    other = SimpleNamespace(limit=InFlightLimit(1), slowed=True, outage=None, running=lambda: [an_item("b")])
    world.now = 5.0
    loads = world._meter.loads([cast(Producer, world), cast(Producer, other)])
    assert {load.key: load.limited for load in loads} == {"a": False, "b": True}


def test_the_number_of_reported_keys_is_limited(world: World) -> None:
    world.in_flight(*[an_item(f"key-{n}") for n in range(200)], an_item("busy"), an_item("busy"))
    world.now = 5.0
    loads = world.loads()
    assert len(loads) == 50
    assert loads[0].key == "busy"
