"""claim: what is handed out, to whom, in which order, and that no line is handed out twice."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import errors, sql

from batchline.model import Item
from batchline.model.ids import new_id
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import WorkerId
from tests.support import scenes
from tests.support.scenes import Hand, Stage, Staged

MILLION = 1_000_000


@pytest.fixture(scope="module")
def stage_url(server_url: str, template: str) -> Iterator[str]:
    with scenes.database(server_url, template) as url:
        yield url


@pytest.fixture
def stage(stage_url: str) -> Iterator[Stage]:
    with Stage(stage_url) as stage:
        yield stage


@pytest.fixture
def hand(stage: Stage) -> Hand:
    return stage.hand()


def numbers(items: list[Item]) -> list[int]:
    return sorted(item.ordinal for item in items)


def lanes(items: list[Item]) -> dict[int, int]:
    """How many items of each lane."""
    return Counter(item.claim.lane_id for item in items)


# What is handed out


def test_fresh_lines_move_the_cursor(stage: Stage) -> None:
    batch = stage.batch(10)
    hand = stage.hand()

    (claim,) = hand.claim(4)

    assert (claim.batch_id, claim.lane_id, claim.size, claim.attempt) == (batch.id, batch.lanes[0], 4, 1)
    assert numbers(hand.items([claim])) == [0, 1, 2, 3]
    assert numbers(hand.take(4)) == [4, 5, 6, 7]
    assert stage.rows("SELECT next, drained FROM batchline.current_lanes") == [(8, False)]
    assert numbers(hand.take(4)) == [8, 9]
    assert stage.rows("SELECT next, drained FROM batchline.current_lanes") == [(10, True)]
    assert not stage.broken()


def test_due_free_spans_come_before_fresh_lines_of_their_batch(stage: Stage) -> None:
    batch = stage.batch(10)
    stage.span(batch, [0, 1], attempt=2)
    stage.span(batch, [2, 3], due_in=60, attempt=2)

    items = stage.hand().take(3)

    assert [(item.ordinal, item.claim.attempt) for item in items] == [(0, 2), (1, 2), (4, 1)]
    assert not stage.broken()


@pytest.mark.parametrize("how", ["due", "abandoned"])
def test_fresh_lines_of_a_batch_that_is_due_soon_come_before_retries_of_one_that_is_not(
    stage: Stage, how: str
) -> None:
    next_week, soon = stage.batch(10, seconds=7 * 86_400), stage.batch(4, seconds=3600)
    stage.span(next_week, [0, 1, 2], attempt=2, worker=new_id() if how == "abandoned" else None)
    hand = stage.hand()

    assert lanes(hand.take(3)) == {soon.lanes[0]: 3}
    assert lanes(hand.take(3)) == {soon.lanes[0]: 1, next_week.lanes[0]: 2}
    assert [(item.ordinal, item.claim.attempt) for item in hand.take(3)] == [(2, 2), (3, 1), (4, 1)]
    assert not stage.broken()


def test_retries_of_a_batch_that_is_due_soon_come_before_fresh_lines_of_one_that_is_not(stage: Stage) -> None:
    next_week, soon = stage.batch(10, seconds=7 * 86_400), stage.batch(2, 3, seconds=3600)
    stage.span(soon, [0, 1], attempt=2)
    stage.span(soon, [0, 1, 2], lane=1, attempt=3)
    hand = stage.hand()

    assert lanes(hand.take(4)) == {soon.lanes[0]: 2, soon.lanes[1]: 2}
    assert lanes(hand.take(4)) == {soon.lanes[1]: 1, next_week.lanes[0]: 3}


def test_retries_have_a_share_as_fresh_lines_have(stage: Stage) -> None:
    retried, fresh = stage.batch(100, tenant="acme"), stage.batch(100, tenant="bolt")
    stage.span(retried, range(100), attempt=2)

    assert lanes(stage.hand().take(50)) == {retried.lanes[0]: 25, fresh.lanes[0]: 25}


def test_of_free_spans_the_one_that_waits_longest_comes_first(stage: Stage) -> None:
    batch = stage.batch(10)
    stage.span(batch, [0, 1, 2], due_in=-1)
    stage.span(batch, [3, 4, 5], due_in=-9)
    stage.span(batch, [6, 7, 8], due_in=-5)

    assert numbers(stage.hand().take(4)) == [3, 4, 5, 6]


def test_a_free_span_that_is_too_large_is_split_and_the_rest_stays_free(stage: Stage) -> None:
    batch = stage.batch(10)
    span = stage.span(batch, [0, 2, 3, 6, 9], attempt=3)
    hand = stage.hand()

    (claim,) = hand.claim(3)

    assert numbers(hand.items([claim])) == [0, 2, 3]
    assert claim.attempt == 3
    assert claim.span_id != span
    rest = stage.rows(
        "SELECT outstanding, worker_id, attempt, available_at <= now() FROM batchline.spans WHERE id = %s",
        span,
    )
    assert rest == [(scenes.multirange([6, 9]), None, 3, True)]


def test_a_parked_span_comes_whole_and_with_its_task(stage: Stage) -> None:
    batch = stage.batch(10)
    stage.span(batch, range(6), task="task-1", attempt=2)

    (claim,) = stage.hand().claim(2)

    assert (claim.task_id, claim.size, claim.attempt) == ("task-1", 6, 2)


def test_a_task_that_is_still_running_can_be_parked_again(stage: Stage) -> None:
    batch = stage.batch(10)
    stage.span(batch, range(6), task="task-1")
    hand = stage.hand()

    assert hand.park(hand.take(6), "task-1", delay=60) == 6

    assert stage.rows("SELECT task_id, worker_id, available_at > now() FROM batchline.spans") == [
        ("task-1", None, True)
    ]


def test_spans_of_a_worker_that_is_gone_are_taken_over_with_their_attempt(stage: Stage) -> None:
    batch = stage.batch(10)
    stage.span(batch, [0, 1, 2], worker=stage.lease(new_id(), -1), attempt=2)

    items = stage.hand().take(2)

    assert [(item.ordinal, item.claim.attempt) for item in items] == [(0, 2), (1, 2)]
    assert stage.value(
        "SELECT outstanding FROM batchline.spans WHERE worker_id IS NULL"
    ) == scenes.multirange([2])


def test_spans_of_a_live_worker_are_left_alone(stage: Stage) -> None:
    batch = stage.batch(3)
    stage.span(batch, [0, 1, 2], worker=stage.lease(new_id()))

    assert stage.hand().claim(10) == []


@pytest.mark.parametrize("left", [0.001, 3.0])
def test_a_worker_keeps_its_spans_to_the_very_end_of_its_lease(stage: Stage, left: float) -> None:
    batch = stage.batch(3)
    holder, other = stage.span(batch, [0, 1, 2], worker=(anna := new_id())), stage.hand()

    # One transaction has one time, so the lease is neither longer nor over, however slow the machine is.
    with other.holding():
        other.renew(anna, left)
        assert other.claim(10) == []
        assert not other.poll().claimable
        other.renew(anna, 0.0)
        assert other.claim(10) == [], "its last moment is still its own"
        other.renew(anna, -0.001)
        assert other.poll().claimable
        assert [claim.span_id for claim in other.claim(10)] == [holder]


def test_a_claim_renews_the_lease(stage: Stage) -> None:
    stage.batch(3)
    hand = stage.hand(lease=3600)
    stage.lease(hand.id, 60)

    hand.claim(1)

    assert (
        3000
        < stage.value("SELECT extract(epoch FROM lease_until - now())::float8 FROM batchline.workers")
        <= 3600
    )


def test_a_claim_of_nothing_writes_nothing(stage: Stage) -> None:
    batch = stage.batch(3)
    stage.span(batch, [0, 1, 2], due_in=60)
    hand = stage.hand()
    before = stage.lease(hand.id, 60), stage.rows("SELECT * FROM batchline.workers")

    with hand.holding():
        assert hand.claim(10) == []
        written = hand.connection.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()

    assert written == (None,), "an empty claim was given a transaction id, so it wrote something"
    assert (hand.id, stage.rows("SELECT * FROM batchline.workers")) == before


# What a worker is there for


def test_a_claim_is_filled_across_lanes_tenants_and_keys(stage: Stage) -> None:
    first = stage.batch(2, 3, tenant="acme", keys=("a", "b"))
    second = stage.batch(4, tenant="bolt", keys=("c",))
    stage.span(second, [0], attempt=2)

    items = stage.hand().take(100)

    assert lanes(items) == {first.lanes[0]: 2, first.lanes[1]: 3, second.lanes[0]: 4}


def test_a_worker_gets_only_the_keys_that_it_serves(stage: Stage) -> None:
    gone = new_id()
    for worker, key in [(None, "mine"), (None, "other"), (gone, "mine"), (gone, "other")]:
        stage.span(stage.batch(2, keys=(key,)), [0], worker=worker)

    claims = stage.hand().claim(100, keys=["mine", "unknown"])

    assert [claim.key for claim in claims] == ["mine"] * 4
    assert sum(claim.size for claim in claims) == 4


def test_a_worker_of_one_batch_gets_nothing_else(stage: Stage) -> None:
    wanted, other = stage.batch(3, 3, keys=("a", "b")), stage.batch(3, 3, keys=("a", "b"))
    for batch in (wanted, other):
        stage.span(batch, [0])
        stage.span(batch, [0], lane=1, worker=new_id())

    assert lanes(stage.hand().take(100, batch=wanted.id)) == dict.fromkeys(wanted.lanes, 3)
    assert lanes(stage.hand().take(2, batch=other.id)) == dict.fromkeys(other.lanes, 1)


@pytest.mark.parametrize("how", ["shut", "too late"])
def test_nothing_is_handed_out_of_a_lane_that_is_shut_or_past_its_deadline(stage: Stage, how: str) -> None:
    batch = stage.batch(10, seconds=-1 if how == "too late" else 60)
    stage.span(batch, [0])
    stage.span(batch, [1], worker=new_id())
    hand = stage.hand()
    if how == "shut":
        hand.close(batch.id, "pause")

    assert hand.claim(10) == []
    assert hand.claim(10, keys=["k"]) == []
    assert hand.claim(10, batch=batch.id) == []
    assert not hand.poll().claimable, "a poll promises work that a claim does not find: the worker would spin"


def test_a_tenant_with_nothing_but_late_lanes_takes_no_share(stage: Stage) -> None:
    stage.batch(10, tenant="late", seconds=-1)
    stage.batch(10, tenant="prompt")

    assert len(stage.hand().take(10)) == 10


# Who comes first


def test_lanes_of_a_tenant_come_in_the_order_of_their_deadlines(stage: Stage) -> None:
    late = stage.batch(5, seconds=300)
    soon = stage.batch(5, seconds=100, keys=("b",))
    between = stage.batch(5, seconds=200)

    assert lanes(stage.hand().take(7)) == {soon.lanes[0]: 5, between.lanes[0]: 2}
    assert lanes(stage.hand().take(5)) == {between.lanes[0]: 3, late.lanes[0]: 2}


def test_one_tenant_alone_takes_all(stage: Stage) -> None:
    stage.batch(300)
    stage.batch(MILLION)

    assert len(stage.hand().take(500)) == 500


def test_lanes_with_billions_of_lines_between_them_are_no_trouble(stage: Stage) -> None:
    stage.batch(1, seconds=60)
    for _ in range(3):
        stage.batch(2_000_000_000)

    assert len(stage.hand().take(500)) == 500


def test_a_tenant_with_a_million_lines_does_not_starve_one_with_ten(stage: Stage) -> None:
    large = stage.batch(MILLION, tenant="acme", seconds=60)
    stage.span(large, range(400), worker=stage.lease(new_id()))
    small = stage.batch(10, tenant="bolt", seconds=86_400)

    assert lanes(stage.hand().take(100)) == {large.lanes[0]: 90, small.lanes[0]: 10}


def test_tenants_share_alike_whatever_the_number_of_their_lanes(stage: Stage) -> None:
    many = {lane for _ in range(40) for lane in stage.batch(100, tenant="acme").lanes}
    one = stage.batch(4000, tenant="bolt")

    items = stage.hand().take(500)

    assert lanes(items)[one.lanes[0]] == 250
    assert sum(count for lane, count in lanes(items).items() if lane in many) == 250


def test_what_a_dead_worker_holds_is_not_in_flight(stage: Stage) -> None:
    """Else a tenant whose worker died with spans of a paused batch would wait behind all others."""
    paused = stage.batch(MILLION, tenant="acme")
    stage.span(paused, range(5000), worker=new_id())
    stage.hand().close(paused.id, "pause")
    unlucky = stage.batch(MILLION, tenant="acme")
    other = stage.batch(MILLION, tenant="bolt")

    assert lanes(stage.hand().take(100)) == {unlucky.lanes[0]: 50, other.lanes[0]: 50}


@dataclass(frozen=True)
class Tenant:
    in_flight: int
    pending: tuple[int, ...]  # lines of each lane


def fair_levels(tenants: Mapping[str, Tenant], limit: int) -> list[int]:
    """The levels that fairness leads to, by giving one line at a time to whoever has least in flight."""
    level = {name: tenant.in_flight for name, tenant in tenants.items()}
    left = {name: sum(tenant.pending) for name, tenant in tenants.items()}
    for _ in range(limit):
        needs_refill = [name for name in tenants if left[name]]
        if not needs_refill:
            break
        minimum = min(needs_refill, key=lambda name: level[name])
        level[minimum] += 1
        left[minimum] -= 1
    return sorted(level.values())


tenants_ = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.builds(
        Tenant,
        st.integers(0, 30),
        st.lists(st.sampled_from([1, 1, 2, 3, 7, 50]), min_size=1, max_size=12).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


@example(
    tenants={"a": Tenant(0, (10,)), "b": Tenant(0, (50, 50)), "c": Tenant(0, (50, 50))}, limit=90, keys=1
)
@example(tenants={name: Tenant(0, (1,) * 9) for name in "abcdefgh"}, limit=51, keys=2)
@given(tenants=tenants_, limit=st.integers(1, 120), keys=st.integers(1, 3))
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_tenants_are_filled_up_to_one_level(
    stage: Stage, hand: Hand, tenants: dict[str, Tenant], limit: int, keys: int
) -> None:
    stage.clear()
    worker = stage.lease(new_id())
    owner: dict[int, str] = {}
    for name, tenant in tenants.items():
        batch = stage.batch(*tenant.pending, tenant=name, keys=[f"key-{n}" for n in range(keys)])
        owner |= dict.fromkeys(batch.lanes, name)
        if tenant.in_flight:
            stage.span(stage.batch(tenant.in_flight, tenant=name), range(tenant.in_flight), worker=worker)

    items = hand.take(limit)

    got = Counter(owner[item.claim.lane_id] for item in items)
    assert len(items) == min(limit, sum(sum(tenant.pending) for tenant in tenants.values()))
    levels = sorted(tenant.in_flight + got[name] for name, tenant in tenants.items())
    assert levels == fair_levels(tenants, limit)
    assert not stage.broken()


def test_excluded_keys_are_left_to_others(stage: Stage) -> None:
    stage.batch(2, keys=("mine",)), stage.batch(2, keys=("other",)), stage.batch(2, keys=("other-too",))
    hand = stage.hand()
    scope = spans.Scope(excluded=("mine",), excluded_prefixes=("other-",)).params()
    worker = {"worker": hand.id, "name": "hand", "lease": hand.lease}

    rows = hand.run("claim", {**scope, **worker, "limit": 10, "max_tasks": None})

    assert [spans.claim_of(row).key for row in rows] == ["other"]


def test_of_more_lanes_than_lines_are_wanted_the_most_urgent_are_claimed(stage: Stage) -> None:
    batches = [stage.batch(1, seconds=1000 - n) for n in range(6)]

    assert set(lanes(stage.hand().take(2))) == {batches[5].lanes[0], batches[4].lanes[0]}


@pytest.mark.parametrize("closed", ["paused", "late"])
def test_a_tenant_with_nothing_but_retries_of_a_closed_batch_takes_no_share(
    stage: Stage, closed: str
) -> None:
    waiting = stage.batch(100, tenant="a", seconds=-1 if closed == "late" else 60)
    stage.span(waiting, range(100))
    if closed == "paused":
        stage.hand().close(waiting.id, "pause")
    stage.batch(100, tenant="b")

    assert len(stage.hand().take(100)) == 100


def test_fetch_reads_nothing_of_a_span_that_another_worker_has_taken_over(stage: Stage) -> None:
    stage.batch(1)
    stage.db.execute(
        "INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)"
        " VALUES (1, 1, 0, 1, 'a', '{}')"
    )
    try:
        anna, bert = stage.hand(), stage.hand()
        (lost,) = anna.claim(1)
        stage.lease(anna.id, -1)
        (taken,) = bert.claim(1)
        assert taken.span_id == lost.span_id
        params = {"spans": [taken.span_id], "largest": 100}
        assert anna.run("fetch", {**params, "worker": anna.id}) == []
        assert len(bert.run("fetch", {**params, "worker": bert.id})) == 1
    finally:
        stage.db.execute("DELETE FROM batchline.lines")


def test_only_the_holder_parks_and_only_what_is_not_settled(stage: Stage) -> None:
    stage.batch(2)
    anna, bert = stage.hand(), stage.hand()
    items = anna.take(2)
    assert bert.park(items, "stolen") == 0
    anna.settle([scenes.completed(items[0])])

    assert anna.park(items, "task") == 1
    assert not stage.broken()


def test_a_release_frees_nothing_of_other_workers(stage: Stage) -> None:
    batch = stage.batch(4)
    anna, bert = stage.hand(), stage.hand()
    anna.take(2)
    (his,) = bert.claim(2)

    assert anna.release() == [batch.id]
    assert stage.rows("SELECT id FROM batchline.spans WHERE worker_id IS NOT NULL") == [(his.span_id,)]


# Two at once


def test_two_claims_at_once_on_one_lane_share_it(stage: Stage) -> None:
    """A selects the queued lines, B selects them while A has not committed yet."""
    stage.batch(10)
    anna, bert = stage.hand(), stage.hand()

    with anna.holding():
        hers = anna.take(4)
        later = stage.meanwhile(bert, lambda: bert.take(4))
        assert later.waits(), "the second claim should wait for the lane instead of going away empty"
    his = later.result()

    assert (numbers(hers), numbers(his)) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert not stage.broken()


def test_a_claim_that_came_too_late_for_its_lane_takes_another(stage: Stage) -> None:
    first, second = stage.batch(4, seconds=60), stage.batch(9, seconds=90)
    anna, bert = stage.hand(), stage.hand()

    with anna.holding():
        assert lanes(anna.take(4)) == {first.lanes[0]: 4}
        later = stage.meanwhile(bert, lambda: bert.take(4))
        assert later.waits()

    assert lanes(later.result()) == {second.lanes[0]: 4}
    assert not stage.broken()


def test_a_claim_locks_only_the_free_spans_that_it_takes(stage: Stage) -> None:
    batch = stage.batch(30)
    for start in range(0, 30, 3):
        stage.span(batch, range(start, start + 3))
    anna, bert = stage.hand(), stage.hand()

    with anna.holding():
        hers = anna.take(4)
        later = stage.meanwhile(bert, lambda: bert.take(4))
        assert not later.waits()
        his = later.result()

    assert (numbers(hers), numbers(his)) == ([0, 1, 2, 3], [6, 7, 8, 9])


def test_two_claims_at_once_share_what_a_dead_worker_held(stage: Stage) -> None:
    """The second one passes over what the first is taking, and neither waits nor goes away empty."""
    batch, gone = stage.batch(30), stage.lease(new_id(), -1)
    for start in range(0, 30, 3):
        stage.span(batch, range(start, start + 3), worker=gone)
    anna, bert = stage.hand(), stage.hand()

    with anna.holding():
        hers = anna.take(4)
        later = stage.meanwhile(bert, lambda: bert.take(4))
        assert not later.waits()
        his = later.result()

    assert len(hers) == len(his) == 4
    assert not set(numbers(hers)) & set(numbers(his))
    assert not stage.broken()


def test_a_claim_that_looks_again_waits_for_lanes_above_those_that_it_has_locked(stage: Stage) -> None:
    first, second = stage.batch(4, seconds=60), stage.batch(9, seconds=90)
    anna, bert, cara = stage.hand(), stage.hand(), stage.hand()

    with cara.holding():
        with anna.holding():
            anna.take(4)
            assert lanes(cara.take(2, batch=second.id)) == {second.lanes[0]: 2}
            later = stage.meanwhile(bert, lambda: bert.take(4))
            assert later.waits()
        assert later.waits(excluded=anna), "the first lane is drained, and the second one is held"

    assert lanes(later.result()) == {second.lanes[0]: 4}
    assert first.lanes[0] < second.lanes[0]
    assert not stage.broken()


def test_a_worker_whose_lease_ended_while_it_was_idle_does_not_take_over_from_itself(stage: Stage) -> None:
    """Its first look takes fresh lines; its second look must not find these as lines of an expired worker."""
    stage.batch(60)
    anna, bert = stage.hand(), stage.hand()
    stage.lease(bert.id, -1)

    with anna.holding():
        anna.take(50)
        later = stage.meanwhile(bert, lambda: bert.claim(50))
        assert later.waits()

    assert [claim.size for claim in later.result()] == [10]
    assert stage.rows("SELECT count(*) FROM batchline.spans WHERE worker_id IS NULL") == [(0,)]
    assert not stage.broken()


def test_a_cancel_that_commits_while_a_claim_waits_keeps_the_retries_of_its_batch(stage: Stage) -> None:
    batch = stage.batch(5)
    stage.span(batch, range(5))
    closer, hand = stage.hand(), stage.hand()
    stage.lease(hand.id, 1)

    with closer.holding():
        closer.renew(hand.id, 1)
        later = stage.meanwhile(hand, lambda: hand.take(5))
        assert later.waits(), "the claim renews its lease before it takes anything"
        assert closer.close(batch.id, "cancel")

    assert later.result() == []


def test_the_row_of_a_worker_that_claims_is_not_removed_before_its_spans_exist(stage: Stage) -> None:
    batch = stage.batch(5)
    other, hand, sweeper = stage.hand(), stage.hand(), stage.hand()
    stage.lease(hand.id, 60)

    with other.holding():
        other.take(1)
        later = stage.meanwhile(hand, lambda: hand.take(4))
        assert later.waits(), "the claim waits for the lane"
        sweeper.run("expire_worker", {"worker": hand.id})
        sweeper.run("forget_workers", {})

    assert lanes(later.result()) == {batch.lanes[0]: 4}


def test_claims_and_settles_refuse_any_isolation_but_read_committed(stage: Stage) -> None:
    """Under REPEATABLE READ a claim that waited for a lane would hand out the lines of the one before."""
    batch = stage.batch(10)
    hand = stage.hand()
    items = hand.take(4)
    hand.connection.execute("SET default_transaction_isolation = 'repeatable read'")
    acts = (
        lambda: hand.claim(4),
        lambda: hand.claim_new(4, batch.id),
        lambda: hand.settle([scenes.completed(item) for item in items]),
    )
    for act in acts:
        with pytest.raises(errors.InvalidTransactionState, match="must be READ COMMITTED, not REPEATABLE"):
            act()
    stage.db.execute("UPDATE batchline.batches SET cancelling_at = now() WHERE id = %s", (batch.id,))
    stage.lease(hand.id, -1)
    with pytest.raises(errors.InvalidTransactionState):
        hand.conclude(batch.id)


async def test_a_session_works_on_a_database_whose_default_isolation_is_another(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'").format(
                sql.Identifier(name)
            )
        )
    async with Session(database_url, "test") as session:
        worker = WorkerId(new_id(), "test", timedelta(seconds=60))
        assert await spans.claim(session, worker, spans.Scope(), 10) == []


def test_a_lane_that_is_shut_meanwhile_gives_nothing(stage: Stage) -> None:
    shut, other = stage.batch(10, seconds=60), stage.batch(10, seconds=90)
    closer, hand = stage.hand(), stage.hand()

    with closer.holding():
        closer.close(shut.id, "pause")
        later = stage.meanwhile(hand, lambda: hand.take(5))
        assert later.waits()

    assert lanes(later.result()) == {other.lanes[0]: 5}


def test_after_a_crash_the_next_worker_sends_the_same_idempotency_keys(stage: Stage) -> None:
    """A crashes between its claim and its first byte, or after it: nobody can tell."""
    batch = stage.batch(5)
    anna, bert = stage.hand(), stage.hand()
    hers = anna.take(5)
    anna.connection.close()
    assert bert.claim(5) == [], "as long as the lease lasts, its lines are left alone"

    stage.lease(anna.id, -1)
    his = bert.take(5)

    assert [item.idempotency_key for item in his] == [item.idempotency_key for item in hers]
    assert stage.rows("SELECT next FROM batchline.current_lanes") == [(5,)]
    assert {item.claim.batch_id for item in his} == {batch.id}


def test_what_a_worker_gives_back_is_sent_under_the_same_idempotency_keys(stage: Stage) -> None:
    batch = stage.batch(6)
    stage.span(batch, [0, 1, 2], attempt=2)
    anna, bert = stage.hand(), stage.hand()
    hers = anna.take(6)
    assert [item.claim.attempt for item in hers] == [2, 2, 2, 1, 1, 1]

    assert anna.release() == [batch.id]
    his = bert.take(6)

    assert [item.idempotency_key for item in his] == [item.idempotency_key for item in hers]
    assert stage.value("SELECT count(*) FROM batchline.retry_attempts") == 0
    assert not stage.broken()


@pytest.mark.parametrize("act", ["close", "resume"])
def test_claims_of_two_lanes_and_a_close_meet_without_deadlock(stage: Stage, act: str) -> None:
    """The rows of the lanes lie in the other order on disk, so that to lock them as found would be wrong."""
    batch = stage.batch(5, 5)
    for flag in ("false", "true"):
        stage.db.execute(f"UPDATE batchline.lanes SET open = {flag} WHERE id = {batch.lanes[0]}".encode())
    if act == "resume":
        # Paused, as far as the batch knows; a claim that began before it was still has its lanes.
        stage.db.execute("UPDATE batchline.batches SET paused_at = now()")
    gates = [stage.hand(), stage.hand()]
    for gate, lane in zip(gates, batch.lanes, strict=True):
        gate.connection.execute("BEGIN")
        gate.connection.execute("SELECT FROM batchline.lanes WHERE id = %s FOR UPDATE", (lane,))
    hand, other = stage.hand(), stage.hand()

    claiming = stage.meanwhile(hand, lambda: hand.take(10))
    assert claiming.waits()
    current_actor = stage.meanwhile(
        other, lambda: other.resume(batch.id) if act == "resume" else other.close(batch.id, "cancel")
    )
    assert current_actor.waits()
    gates[0].connection.execute("COMMIT")
    assert claiming.waits(excluded=gates[0])
    assert current_actor.waits(excluded=gates[0])
    gates[1].connection.execute("COMMIT")

    assert len(claiming.result()) == 10
    assert current_actor.result()
    assert not stage.broken()


# What an idle worker is told


def test_a_poll_promises_exactly_what_a_claim_finds(stage: Stage) -> None:
    fresh = stage.batch(1, keys=("fresh",))
    free = stage.batch(1, keys=("free",))
    abandoned = stage.batch(1, keys=("abandoned",))
    held = stage.batch(1, keys=("held",))
    waiting = stage.batch(1, keys=("waiting",))
    stage.span(free, [0])
    stage.span(abandoned, [0], worker=new_id())
    stage.span(held, [0], worker=stage.lease(new_id()))
    stage.span(waiting, [0], due_in=60)
    hand = stage.hand()

    def promised(batch: Staged, key: str) -> set[bool]:
        return {hand.poll(keys=[key]).claimable, hand.poll(batch=batch.id).claimable}

    assert promised(fresh, "fresh") == promised(free, "free") == promised(abandoned, "abandoned") == {True}
    assert promised(held, "held") == promised(waiting, "waiting") == {False}
    assert hand.poll(keys=["unknown"]).claimable is False
    assert hand.poll().claimable


def test_a_poll_returns_when_the_next_retry_and_the_next_lease_are_due(stage: Stage) -> None:
    stage.db.execute("UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 day'")
    stage.span(stage.batch(1, seconds=86_400), [0], due_in=3000)
    hand = stage.hand()

    assert 2500 < (hand.poll().next_due or 0) <= 3000
    stage.span(stage.batch(1, seconds=86_400), [0], worker=stage.lease(new_id(), 2000))
    assert 1500 < (hand.poll().next_due or 0) <= 2000


def test_a_dead_worker_that_holds_nothing_claimable_is_not_waited_for(stage: Stage) -> None:
    stage.db.execute("UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 day'")
    batch = stage.batch(2, seconds=86_400)
    stage.span(batch, [0], worker=new_id())
    hand = stage.hand()
    hand.close(batch.id, "pause")

    poll_result = hand.poll()

    assert not poll_result.claimable
    assert (poll_result.next_due or 0) > 3600, "an idle worker would poll again and again for nothing"


@pytest.mark.parametrize("left", [0, 2], ids=["nothing left", "too little left"])
def test_what_an_idle_worker_has_just_claimed_is_not_taken_for_abandoned(stage: Stage, left: int) -> None:
    """An idle worker does not renew its lease. When it claims again, another claim may have read that its
    lease is over, and wait for the same lane."""
    idle, other = stage.hand(), stage.hand()
    stage.batch(1)
    idle.settle([scenes.completed(item) for item in idle.take(1)])
    batch = stage.batch(10 + left)
    other.renew(idle.id, -1.0)
    with idle.holding():
        mine = idle.take(10, batch=batch.id)
        waiting = stage.meanwhile(other, lambda: other.take(100, batch=batch.id))
        assert waiting.waits(), "it waits for the lane"
    theirs = waiting.result()
    assert (len(mine), len(theirs)) == (10, left)
    assert not {item.ordinal for item in mine} & {item.ordinal for item in theirs}
