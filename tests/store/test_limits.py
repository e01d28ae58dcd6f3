"""Limits: exact however many submit at once, in two layers, and lifted for those who are exempt."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from batchline.config.settings import LimitSettings
from batchline.governance import changes
from batchline.governance.access import Actor
from batchline.governance.errors import LimitReached, Refused, TooLarge
from batchline.governance.rules import Rules
from batchline.governance.submissions import Submission
from batchline.model import GovernedBatch, RequestKind, Role
from batchline.store import limits, operations
from batchline.store.audit import AuditEvent
from batchline.store.limits import Window
from batchline.store.pool import Sessions
from batchline.store.session import Session
from batchline.store.statements import statement
from tests.support.builders import on, sql
from tests.support.governance import (
    ANNA,
    BERT,
    EMIL,
    append,
    count,
    end_all,
    is_sound,
    items,
    now,
    production,
    some_rules,
    somebody_waits,
    submit,
    work,
)

SUBMITTERS = 50
CONNECTIONS = 8


def at_once(
    url: str, acts: list[Callable[[Session], Awaitable[GovernedBatch]]]
) -> tuple[list[GovernedBatch], list[Refused]]:
    """Do all of it at the same time on eight connections: what was let in, and what was refused."""

    async def run() -> list[Any]:
        sessions = Sessions(url, maximum=CONNECTIONS, patience=60)
        try:

            async def one(act: Callable[[Session], Awaitable[GovernedBatch]]) -> Any:
                async with sessions.one() as session:
                    try:
                        return await act(session)
                    except Refused as refused:
                        return refused

            return await asyncio.gather(*(one(act) for act in acts))
        finally:
            await sessions.close()

    answers = asyncio.run(run())
    return (
        [answer for answer in answers if isinstance(answer, GovernedBatch)],
        [answer for answer in answers if isinstance(answer, Refused)],
    )


def submission(rules: Rules, actor: Actor, size: int) -> Callable[[Session], Awaitable[GovernedBatch]]:
    return lambda session: submit(session, rules, actor, size)


def users(number: int) -> list[Actor]:
    return [Actor("acme", f"user-{n}", Role.USER) for n in range(number)]


def limit_types(refused: list[Refused]) -> Counter[str]:
    assert all(isinstance(each, LimitReached) for each in refused), refused
    return Counter(each.limit_type for each in refused if isinstance(each, LimitReached))


# Exact at once


def test_fifty_concurrent_submissions_create_three_batches(database_url: str) -> None:
    rules = some_rules(user_pending_parents=3)
    made, refused = at_once(database_url, [submission(rules, ANNA, 2)] * SUBMITTERS)
    assert len(made) == 3
    assert limit_types(refused) == {"user_pending_parents": SUBMITTERS - 3}
    assert all(isinstance(each, LimitReached) and each.current_value == 3 for each in refused)
    assert on(database_url, lambda db: count(db, "batches")) == 3


def test_fifty_concurrent_users_do_not_exceed_the_global_limit(database_url: str) -> None:
    rules = some_rules(max_pending_parents=20)
    made, refused = at_once(database_url, [submission(rules, user, 1) for user in users(SUBMITTERS)])
    assert len(made) == 20
    assert limit_types(refused) == {"global_pending_parents": SUBMITTERS - 20}
    on(database_url, is_sound)


def test_none_of_fifty_is_refused_where_all_fit_exactly(database_url: str) -> None:
    rules = some_rules(max_pending_parents=SUBMITTERS, user_pending_parents=1, user_pending_children=4)
    made, refused = at_once(database_url, [submission(rules, user, 4) for user in users(SUBMITTERS)])
    assert (len(made), refused) == (SUBMITTERS, [])


def test_children_are_counted_to_the_last_one(database_url: str) -> None:
    """Sizes that fill thirty places in some orders and not in others: never more, and no fit refused."""
    rules = some_rules(user_pending_children=30)
    made, refused = at_once(database_url, [submission(rules, ANNA, size) for size in (3, 5, 7, 2, 1) * 10])
    pending = sum(batch.total for batch in made)
    assert pending == 30, "ones are among those that were refused, so all places must be taken"
    assert set(limit_types(refused)) == {"user_pending_children"}


def test_of_fifty_at_once_one_is_let_in_and_the_rest_cool_down(database_url: str) -> None:
    rules = some_rules(cooldown_seconds=120)
    made, refused = at_once(database_url, [submission(rules, ANNA, 1)] * SUBMITTERS)
    assert len(made) == 1
    assert limit_types(refused) == {"user_cooldown": SUBMITTERS - 1}
    for each in refused:
        assert isinstance(each, LimitReached)
        assert 0 < each.retry_after <= 120
        assert each.max_value == 120


async def test_places_are_free_again_the_moment_the_last_child_ends(db: Session) -> None:
    rules = some_rules(user_pending_parents=1)
    await submit(db, rules, ANNA, 2)
    with pytest.raises(LimitReached):
        await submit(db, rules, ANNA, 1)
    await work(db, limit=1, end=False)
    with pytest.raises(LimitReached):
        await submit(db, rules, ANNA, 1)
    await work(db, limit=1, end=False)
    await submit(db, rules, ANNA, 1)


def test_submissions_that_race_with_settles_never_exceed(database_url: str) -> None:
    """Whatever is freed meanwhile: at every commit no more is pending than allowed."""
    rules = some_rules(user_pending_parents=3, user_pending_children=6)

    async def working(session: Session) -> GovernedBatch:
        while not await operations.page(session, "acme", limit=1):
            pass
        for _ in range(10):
            await work(session, limit=2)
            measured = await limits.measure(session, "acme", "anna")
            assert measured.parents <= 3
            assert measured.children <= 6
        return (await operations.page(session, "acme", limit=1))[0]

    acts = [working] + [submission(rules, ANNA, 2)] * SUBMITTERS
    made, refused = at_once(database_url, acts)
    assert set(limit_types(refused)) <= {"user_pending_parents", "user_pending_children"}
    assert len(made) >= 4


# What is counted


async def test_a_batch_that_waits_for_approval_or_is_held_is_pending(db: Session) -> None:
    rules = some_rules(user_pending_parents=2)
    await submit(db, rules, ANNA, production())
    await submit(db, rules, ANNA, 1, hold=True)
    with pytest.raises(LimitReached, match="2 of your batches"):
        await submit(db, rules, ANNA, 1)
    await submit(db, rules, BERT, 1)


async def test_a_cancelled_batch_gives_its_places_back(db: Session) -> None:
    rules = some_rules(user_pending_parents=1)
    batch = await submit(db, rules, ANNA, 3)
    await changes.cancel(db, ANNA, batch.id)
    await submit(db, rules, ANNA, 1)


async def test_users_of_two_tenants_with_one_name_are_two_users(db: Session) -> None:
    rules = some_rules(user_pending_parents=1)
    await submit(db, rules, Actor("acme", "anna", Role.USER), 1)
    await submit(db, rules, Actor("other", "anna", Role.USER), 1)


async def test_limits_of_a_user_do_not_apply_to_a_namesake_in_another_tenant(db: Session) -> None:
    """A cooldown, an exemption and limits of one's own are each one tenant's."""
    namesake = Actor("other", "anna", Role.USER)
    cooling = some_rules(cooldown_seconds=120)
    await submit(db, cooling, ANNA, 1)
    await submit(db, cooling, namesake, 1)

    one_each = some_rules(user_pending_parents=1)
    await exempt(db, "anna", 3600)
    await submit(db, one_each, ANNA, 1)
    with pytest.raises(LimitReached):
        await submit(db, one_each, namesake, 1)
    await sql(db, "DELETE FROM batchline.limit_exemptions")

    event = AuditEvent("acme", EMIL.user, "limits.set", subject="anna")
    await limits.set_override(db, "acme", "anna", parents=9, children=90, cooldown=0, reason="x", event=event)
    await submit(db, one_each, ANNA, 1)
    with pytest.raises(LimitReached):
        await submit(db, one_each, namesake, 1)


async def test_a_batch_with_more_children_than_the_limit_is_refused_for_good(db: Session) -> None:
    rules = some_rules(user_pending_children=30)
    with pytest.raises(TooLarge, match="31 children, but at most 30"):
        await submit(db, rules, ANNA, 31)
    await submit(db, rules, ANNA, 30)
    assert await count(db, "batches") == 1


async def test_a_batch_with_more_children_than_the_limit_is_refused_for_good_even_during_a_cooldown(
    db: Session,
) -> None:
    rules = some_rules(user_pending_children=30, user_pending_parents=1, cooldown_seconds=120)
    await submit(db, rules, ANNA, 1)
    with pytest.raises(TooLarge):
        await submit(db, rules, ANNA, 31)


async def test_the_cooldown_ends_by_the_databases_clock(db: Session) -> None:
    rules = some_rules(cooldown_seconds=120)
    await submit(db, rules, ANNA, 1)
    with pytest.raises(LimitReached) as refused:
        await submit(db, rules, ANNA, 1)
    assert refused.value.limit_type == "user_cooldown"
    assert 60 < refused.value.retry_after <= 120
    await sql(db, "UPDATE batchline.operation_batches SET created_at = created_at - interval '121 s'")
    await submit(db, rules, ANNA, 1)


async def test_what_was_refused_starts_no_cooldown(db: Session) -> None:
    rules = some_rules(cooldown_seconds=120, user_pending_children=5)
    with pytest.raises(TooLarge):
        await submit(db, rules, ANNA, 6)
    await submit(db, rules, ANNA, 5)


async def test_a_server_that_freezes_in_mid_submission_does_not_keep_all_others_out(
    database_url: str, db: Session
) -> None:
    """The database hangs up on it: the locks that everybody waits for are free again soon."""

    async def sql_in(submitting: operations.Submitting) -> None:
        cursor = await submitting._connection.execute("SHOW idle_in_transaction_session_timeout")
        assert await cursor.fetchall() == [("10s",)]

    async with operations.submitting(db, "acme", "anna") as submitting:
        assert submitting.measured.parents == 0
        async with Session(database_url, "watch") as watch:
            frozen = "state = 'idle in transaction' AND datname = current_database()"
            assert await count(watch, "pg_stat_activity", frozen) == 1
        await sql_in(submitting)


# Overrides and exemptions


async def exempt(db: Session, user: str, seconds: float) -> None:
    event = AuditEvent("acme", "emil", "limits.exempted", subject=user)
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    made = await limits.exempt(db, "acme", user, reason="move", expires_at=until, event=event)
    assert made is not None


async def test_an_exemption_lifts_the_users_limits_and_not_the_global_ones(db: Session) -> None:
    rules = some_rules(
        max_pending_parents=5, user_pending_parents=1, user_pending_children=2, cooldown_seconds=120
    )
    await exempt(db, "anna", 3600)
    for _ in range(5):
        await submit(db, rules, ANNA, 10)
    with pytest.raises(LimitReached) as refused:
        await submit(db, rules, ANNA, 1)
    assert refused.value.limit_type == "global_pending_parents"


async def test_an_expired_exemption_is_ignored(db: Session) -> None:
    rules = some_rules(user_pending_parents=1)
    await exempt(db, "anna", 3600)
    await submit(db, rules, ANNA, 1)
    await submit(db, rules, ANNA, 1)
    await sql(db, "UPDATE batchline.limit_exemptions SET expires_at = now()")
    with pytest.raises(LimitReached):
        await submit(db, rules, ANNA, 1)


async def test_an_exemption_that_expires_while_a_submission_waits_for_its_turn_is_ignored(
    database_url: str,
) -> None:
    """The submission began before the exemption ended, and comes to its turn after it."""
    rules = some_rules(user_pending_parents=1)
    async with Session(database_url, "holder") as holder, Session(database_url, "anna") as session:
        await submit(holder, rules, ANNA, 1)
        async with holder.transaction() as connection:
            await limits.lock(connection, "acme", "bert")
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            async with Session(database_url, "admin") as admin:
                await exempt(admin, "anna", 3600)
                waiting = asyncio.create_task(submit(session, rules, ANNA, 1))
                await somebody_waits(admin)
                await sql(admin, "UPDATE batchline.limit_exemptions SET expires_at = now()")
        with pytest.raises(LimitReached):
            await waiting


async def test_an_exemption_in_the_past_is_not_made(db: Session) -> None:
    event = AuditEvent("acme", "emil", "limits.exempted", subject="anna")
    past = datetime.now(UTC) - timedelta(seconds=1)
    made = await limits.exempt(db, "acme", "anna", reason="late", expires_at=past, event=event)
    assert made is None
    assert await count(db, "audit_log") == 0


async def test_a_users_own_limits_take_the_place_of_the_defaults_up_and_down(db: Session) -> None:
    rules = some_rules(user_pending_parents=1, user_pending_children=4)

    async def give(parents: int, children: int, cooldown: int) -> None:
        event = AuditEvent("acme", EMIL.user, "limits.set", subject="anna")
        await limits.set_override(
            db,
            "acme",
            "anna",
            parents=parents,
            children=children,
            cooldown=cooldown,
            reason="x",
            event=event,
        )

    await give(2, 10, 0)
    await submit(db, rules, ANNA, 5)
    await submit(db, rules, ANNA, 5)
    with pytest.raises(LimitReached):
        await submit(db, rules, ANNA, 1)
    await give(1, 3, 0)
    with pytest.raises(TooLarge):
        await submit(db, rules, ANNA, 4)
    await submit(db, rules, BERT, 4)
    await give(10, 100, 60)
    with pytest.raises(LimitReached) as refused:
        await submit(db, rules, ANNA, 1)
    assert refused.value.limit_type == "user_cooldown"


# Requests by the minute


async def test_minutes_that_are_over_are_forgotten(db: Session) -> None:
    old = "INSERT INTO batchline.api_windows VALUES (now() - interval '1 day', 7, 'read', 'acme', 'anna')"
    await sql(db, old)
    await limits.count_request(db, "acme", "anna", RequestKind.READ, 10)
    assert await count(db, "api_windows", "starts_at < now() - interval '1 hour'") == 0
    assert await limits.requests_now(db) in (Window(0, 0), Window(1, 0))


# More that becomes pending


async def test_a_retry_counts_as_pending_and_is_refused_where_it_does_not_fit(db: Session) -> None:
    rules = some_rules(user_pending_parents=1)
    batch = await submit(db, rules, ANNA, 3)
    await work(db, failures={1, 2})
    await submit(db, rules, ANNA, 1)
    with pytest.raises(LimitReached):
        await changes.retry(rules, db, ANNA, batch.id)
    assert (await now(db, batch)).counts.failed == 2, "the refusal undid all of it"
    await work(db)
    await changes.retry(rules, db, ANNA, batch.id)
    with pytest.raises(LimitReached):
        await submit(db, rules, ANNA, 1)
    await is_sound(db)


async def test_appending_counts_against_the_children_and_says_when_it_can_never_fit(db: Session) -> None:
    rules = some_rules(user_pending_children=10)
    batch = await submit(db, rules, ANNA, 4, hold=True)
    with pytest.raises(TooLarge, match="11 children"):
        await append(rules, db, ANNA, batch.id, items(7))
    other = await submit(db, rules, ANNA, 4)
    with pytest.raises(LimitReached):
        await append(rules, db, ANNA, batch.id, items(3))
    await changes.cancel(db, ANNA, other.id)
    assert (await append(rules, db, ANNA, batch.id, items(6))).total == 10
    await end_all(db)
    await is_sound(db)


async def _history(db: Session, ended: int) -> None:
    """A tenant with a long past: batches of many users that are over."""
    await sql(
        db,
        """
        WITH past AS (
            SELECT gen_random_uuid() AS id, 'user-' || n %% 100 AS who, now() - make_interval(secs => n) AS at
            FROM generate_series(1, %(ended)s) AS n
        ),
        batch AS (
            INSERT INTO batchline.batches (
                id, tenant, file_id, completion_window, settings, total, completed, created_at,
                in_progress_at, expires_at, finalizing_at, completed_at, submitted_by
            )
            SELECT id, 'acme', id, '7d', '{}', 3, 3, at, at, at, at, at, who FROM past
        )
        INSERT INTO batchline.operation_batches (
            batch_id, tenant, user_id, operation, request_id, fingerprint, created_at, approval, counted_at
        )
        SELECT id, 'acme', who, 'resize', id, '', at, 'not_required', at FROM past
        """,
        ended=ended,
    )
    await sql(db, "ANALYZE batchline.batches")
    await sql(db, "ANALYZE batchline.operation_batches")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("measure_limits", {}),
        ("find_request", {"operation": "resize", "request_id": uuid4()}),
        ("operation_totals", {}),
        ("operation_durations", {}),
        ("list_pending_operations", {"operation": None, "after": None, "limit": 20}),
        ("list_operations", {"operation": None, "approval": None, "after": None, "limit": 20}),
        ("list_user_operations", {"operation": None, "approval": None, "after": None, "limit": 20}),
        *(
            (name, {"operation": None, "approval": None, "after": None, "limit": 20, "status": status})
            for name in ("list_operations_by_status", "list_user_operations_by_status")
            for status in ("IN_PROGRESS", "COMPLETED", "FAILED")
        ),
    ],
)
async def test_governance_queries_cost_the_same_whatever_the_length_of_the_history(
    db: Session, name: str, more: dict[str, Any]
) -> None:
    await _history(db, 20_000)
    for _ in range(3):
        await submit(db, some_rules(), ANNA, 2)
    text, names = statement(name).numbered_in("batchline")
    params = {"tenant": "acme", "user": "anna", **more}
    values = ", ".join("NULL" if params[each] is None else f"'{params[each]}'" for each in names)
    # As a session plans: once, for any parameters.
    await sql(db, f"PREPARE asked AS {text}")
    requested = f"asked ({values})" if names else "asked"
    explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE {requested}"
    ((plan,),) = await sql(db, explain)
    root = plan[0]["Plan"]
    assert root["Shared Hit Blocks"] + root["Shared Read Blocks"] < 200, plan


def test_the_default_limits_are_100_and_1000_for_all_and_3_30_and_two_minutes_for_a_user() -> None:
    limits = LimitSettings()
    assert (limits.max_pending_parents, limits.requests_per_minute) == (100, 1000)
    assert (limits.user_pending_parents, limits.user_pending_children, limits.cooldown_seconds) == (
        3,
        30,
        120,
    )


def test_the_fingerprint_of_a_submission_depends_on_operation_and_items(database_url: str) -> None:
    one = Submission("resize", items(1))
    assert one.fingerprint() == Submission("resize", items(1)).fingerprint()
    assert one.fingerprint() != Submission("resize", items(2)).fingerprint()
    assert one.fingerprint() != Submission("wipe", items(1)).fingerprint()
