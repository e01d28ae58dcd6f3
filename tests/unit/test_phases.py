"""Where the time of an item went: the parts add up to its wall time, whatever was measured."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from batchline.model import Attempt, AttemptTimes, ItemHistory, Phases, phases

START = datetime(2026, 11, 17, tzinfo=UTC)
SECONDS = st.floats(0, 5000, allow_nan=False)
TIMES = st.one_of(st.none(), st.builds(AttemptTimes, held=SECONDS, upstream=SECONDS, settling=SECONDS))


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def an_item(
    attempts: tuple[Attempt, ...] = (),
    *,
    until: float,
    times: AttemptTimes | None = None,
    claimed: float | None = None,
    finished: bool = True,
) -> ItemHistory:
    return ItemHistory(
        custom_id="q-1",
        line_no=1,
        model="m",
        state="completed",
        attempt=len(attempts) + 1,
        claimed_at=None if claimed is None else at(claimed),
        not_before=None,
        status_code=200,
        finished_at=at(until) if finished else None,
        attempts=attempts,
        started_at=START,
        until=at(until),
        times=times,
    )


def an_attempt(number: int, ended: float, delay: float, times: AttemptTimes | None) -> Attempt:
    return Attempt(number, "http_503", "overloaded", at(ended + delay), at(ended), times)


def test_each_part_is_where_it_belongs() -> None:
    first = an_attempt(1, 10.0, 4.0, AttemptTimes(held=7.0, upstream=5.0, settling=0.5))
    last = AttemptTimes(held=3.0, upstream=2.0, settling=0.25)
    assert phases(an_item((first,), until=20.0, times=last)) == [
        Phases(backoff=0, waiting=3000, limit=1500, upstream=5000, settling=500),
        Phases(backoff=4000, waiting=3000, limit=750, upstream=2000, settling=250),
    ]


def test_an_item_that_nobody_has_claimed_waits() -> None:
    assert phases(an_item(until=2.5, finished=False)) == [Phases(waiting=2500)]


def test_an_item_that_is_not_due_yet_is_in_its_back_off() -> None:
    failed = an_attempt(1, 1.0, 60.0, AttemptTimes(1.0, 1.0, 0.0))
    assert phases(an_item((failed,), until=5.0, finished=False))[-1] == Phases(backoff=4000)


def test_an_item_that_runs_is_in_progress_since_it_was_claimed() -> None:
    assert phases(an_item(until=9.0, claimed=4.0, finished=False)) == [Phases(waiting=4000, held=5000)]


def test_an_item_from_before_times_were_kept_has_only_waited() -> None:
    assert phases(an_item(until=3.0)) == [Phases(waiting=3000)]


@given(
    ends=st.lists(st.tuples(SECONDS, SECONDS, TIMES), max_size=5),
    last=st.tuples(SECONDS, TIMES),
    claimed=st.one_of(st.none(), SECONDS),
    finished=st.booleans(),
)
def test_the_parts_add_up_whatever_was_measured(
    ends: list[tuple[float, float, AttemptTimes | None]],
    last: tuple[float, AttemptTimes | None],
    claimed: float | None,
    finished: bool,
) -> None:
    attempts, ended = list[Attempt](), 0.0
    for number, (took, delay, times) in enumerate(ends, 1):
        ended += took
        attempts.append(an_attempt(number, ended, delay, times))
    until = max(ended + last[0], claimed or 0.0)
    found = phases(an_item(tuple(attempts), until=until, times=last[1], claimed=claimed, finished=finished))
    assert len(found) == len(attempts) + 1
    whole = sum(found, Phases())
    assert min(whole.backoff, whole.waiting, whole.limit, whole.upstream, whole.settling, whole.held) >= 0
    # Each of at most seven intervals is rounded to a millisecond.
    assert abs(whole.total - round(1000 * (at(until) - START).total_seconds())) <= 7
