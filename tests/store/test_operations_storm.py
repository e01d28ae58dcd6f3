"""Everything at once on the same few batches: whoever meets whom, nothing deadlocks and all adds up."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from batchline.batches.staging import AT_ONCE, StagingRequest
from batchline.governance import changes, decisions, submissions
from batchline.governance.access import Actor
from batchline.governance.errors import Refused
from batchline.governance.submissions import Submission
from batchline.model import GovernedBatch, ParentStatus, Role
from batchline.store import batches, limits, operations, steps
from batchline.store.session import Session
from tests.support.builders import sql
from tests.support.governance import (
    CARLA,
    EMIL,
    append,
    approve_seen,
    count,
    end_all,
    is_sound,
    items,
    production,
    some_rules,
    work,
)

HANDS = 8
STEPS = 60
MAX_PARENTS = 4
MAX_CHILDREN = 12


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_acts_leaves_the_database_sound(database_url: str, db: Session, seed: int) -> None:
    rules = some_rules(user_pending_parents=MAX_PARENTS, user_pending_children=MAX_CHILDREN)
    users = [Actor("acme", name, Role.USER) for name in ("anna", "bert")]
    done: Counter[str] = Counter()

    async def hand(number: int) -> None:
        choose = random.Random(seed * HANDS + number)
        async with Session(database_url, f"hand {number}") as db:

            async def some() -> GovernedBatch | None:
                newest = await operations.page(db, "acme", limit=6)
                return choose.choice(newest) if newest else None

            async def submit() -> Any:
                what = choose.choice((items(2), items(4), production(2)))
                staging = choose.choice(
                    (AT_ONCE, StagingRequest(steps="1", max_failed="50%"), StagingRequest(sample=1))
                )
                requested = Submission("resize", what, hold=choose.random() < 0.4, staging=staging)
                return await submissions.submit(rules, db, choose.choice(users), requested)

            def on_some(act: Callable[..., Awaitable[Any]], *more: Any, actor: Actor = EMIL) -> Any:
                async def run() -> Any:
                    batch = await some()
                    return None if batch is None else await act(db, actor, batch.id, *more)

                return run

            async def look() -> None:
                for user in users:
                    now = await limits.measure(db, "acme", user.user)
                    assert now.parents <= MAX_PARENTS
                    assert now.children <= MAX_CHILDREN

            acts: dict[str, Callable[[], Awaitable[Any]]] = {
                "submit": submit,
                "work": lambda: work(
                    db, failures=set(choose.sample(range(1, 9), 4)), limit=choose.randint(1, 5), end=False
                ),
                "end": lambda: _end_some(db),
                "begin_step": lambda: _begin_steps(db),
                "approve": on_some(partial(approve_seen, rules), actor=CARLA),
                "reject": on_some(decisions.reject, actor=CARLA),
                "cancel": on_some(changes.cancel),
                "pause": on_some(changes.pause),
                "resume": on_some(changes.resume),
                "append": on_some(partial(append, rules), items(1)),
                "release": on_some(changes.release),
                "retry": on_some(partial(changes.retry, rules)),
                "look": look,
            }
            weights = {
                "work": 6,
                "end": 4,
                "begin_step": 4,
                "submit": 6,
                "retry": 4,
                "approve": 4,
                "release": 4,
                "resume": 3,
                "append": 3,
            }
            names = list(acts)
            for name in choose.choices(names, [weights.get(name, 1) for name in names], k=STEPS):
                try:
                    await acts[name]()
                    done[name] += 1
                except Refused:
                    done[f"{name} refused"] += 1

    async with asyncio.TaskGroup() as hands:
        for number in range(HANDS):
            hands.create_task(hand(number))
    assert {"submit", "work"} <= set(done), done
    await _adds_up(db)


async def _begin_steps(db: Session) -> None:
    for batch_id in await steps.due(db):
        await steps.begin(db, batch_id)


async def _end_some(db: Session) -> None:
    """As `end_all`, but others may be quicker."""
    try:
        await end_all(db)
    except AssertionError:
        return


async def _adds_up(db: Session) -> None:
    await is_sound(db)
    for (batch_id,) in await sql(db, "SELECT id FROM batchline.batches WHERE finalizing_at IS NULL"):
        await batches.close(db, batch_id, "cancel")
        # What a hand held when it stopped is held by nobody any more.
        await sql(db, "UPDATE batchline.workers SET lease_until = now() - interval '1 s'")
        await batches.conclude(db, batch_id)
    await sql(db, "UPDATE batchline.batches SET finalizer = NULL WHERE ended_at IS NULL")
    await end_all(db)
    await is_sound(db)
    for batch in await operations.page(db, "acme", limit=1000):
        assert batch.counts.pending == 0
        assert batch.counts.total == batch.total
        assert batch.status is not ParentStatus.IN_PROGRESS
    # Every end of a child is in the log: those that stand, and those that were tried again.
    ((ends, retried),) = await sql(
        db,
        "SELECT sum(b.total), sum(o.retried_children)"
        " FROM batchline.batches AS b JOIN batchline.operation_batches AS o ON o.batch_id = b.id",
    )
    assert await count(db, "audit_log", "action = 'child.ended'") == ends + retried
