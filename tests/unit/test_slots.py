"""The slots of a producer follow the limit of its upstream."""

from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.worker.slots import Slots
from tests.support.http_executor import an_item


def test_free_slots_are_what_the_limit_allows_beyond_the_running_items() -> None:
    slots = Slots(InFlightLimit(3))
    slots.running[1] = an_item(None)
    assert slots.free == 2


def test_a_lowered_limit_leaves_negative_free_slots_until_items_end() -> None:
    limit = InFlightLimit(64)
    slots = Slots(limit)
    slots.running.update({number: an_item(None) for number in range(64)})
    limit.timed_out(an_item(None), limit.round, 64)
    assert limit.value < 64
    assert slots.free == limit.value - 64
    slots.running.clear()
    assert slots.free == limit.value
