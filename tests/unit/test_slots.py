"""How time-outs lower the number in flight at an upstream, how answers raise it, and what counts."""

from batchline.model import Claim, Item, RunSettings
from batchline.model.ids import new_id
from batchline.upstreams.slots import Slots

CLAIM = Claim(1, 1, new_id(), 1, None, 1, "/v1/chat/completions", "m", "m", 60.0, RunSettings())


def an_item(number: int = 1) -> Item:
    return Item(CLAIM, number - 1, number, b"q", b"{}")


def filled(maximum: int, in_flight: int) -> Slots:
    """Slots with so much in flight."""
    slots = Slots(maximum)
    for number in range(in_flight):
        item = an_item(number + 1)
        slots.running[id(item)] = item
    return slots


def time_out(slots: Slots, number: int = 1, *, sent_in: int | None = None, company: int = 0) -> bool:
    return slots.timed_out(an_item(number), slots.round if sent_in is None else sent_in, company)


def test_time_outs_of_one_round_halve_the_limit_once() -> None:
    slots = filled(64, 64)
    assert [time_out(slots, number, sent_in=0) for number in range(1, 65)] == [False] * 64
    assert slots.limit == 32


def test_what_is_sent_after_a_cut_halves_the_limit_again() -> None:
    slots = filled(64, 64)
    limits = []
    for _ in range(7):
        time_out(slots)
        limits.append(slots.limit)
        while len(slots.running) > slots.limit:
            slots.running.popitem()
    assert limits == [32, 16, 8, 4, 2, 1, 1]


def test_the_number_in_flight_is_halved_not_the_slots_that_are_free() -> None:
    slots = filled(64, 10)
    time_out(slots)
    assert slots.limit == 5


def test_a_time_out_alone_counts_and_lowers_nothing() -> None:
    slots = filled(64, 1)
    assert time_out(slots)
    assert slots.limit == 64


def test_who_had_company_when_it_was_sent_was_not_alone() -> None:
    assert not time_out(filled(64, 1), company=1)


def test_a_round_of_answers_raises_the_limit_by_one_up_to_its_maximum() -> None:
    slots = filled(8, 8)
    time_out(slots)
    slots.forget(an_item())
    limits = []
    for _ in range(4 + 5 + 6 + 7):
        assert slots.adapting
        slots.answered(an_item(2))
        limits.append(slots.limit)
    assert limits == [4] * 3 + [5] * 5 + [6] * 6 + [7] * 7 + [8]
    assert not slots.adapting, "then nothing more is counted"


def test_a_line_that_always_times_out_is_spared_a_few_times_only() -> None:
    slots = filled(64, 64)
    assert [time_out(slots, 7) for _ in range(10)] == [False] * 8 + [True] * 2
    assert not time_out(slots, 8), "another line is another matter"


def test_a_line_that_was_answered_is_not_remembered() -> None:
    slots = filled(64, 64)
    for _ in range(8):
        time_out(slots, 7)
    slots.answered(an_item(7))
    assert not time_out(slots, 7)
