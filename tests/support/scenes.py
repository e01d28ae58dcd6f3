"""Scenes in which statements meet: batches whose lanes need no lines, and hands that hold a transaction open.

    batch = stage.batch(10)
    anna, bert = stage.hand(), stage.hand()
    with anna.holding():
        anna.claim(5)
        later = stage.meanwhile(bert, lambda: bert.claim(5))
        assert later.waits()
    assert later.result()

A stage is one database, arranged and read from outside by plain SQL. A hand is a worker with a connection of
its own that runs the store's statements as a session does, but synchronously, and commits when told.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar
from uuid import UUID

import msgspec
import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from batchline.model import (
    Claim,
    Completed,
    Deferred,
    Failed,
    Item,
    ItemCounts,
    PollResult,
    Retried,
    Settled,
    Usage,
    Verdict,
)
from batchline.model.emission import PYTHON, Emission
from batchline.model.ids import new_id
from batchline.store import arrays, spans
from batchline.store.batches import batch_of
from batchline.store.schedules import NO_SCHEDULES
from batchline.store.statements import statement
from batchline.store.verdicts import Grouped
from tests.support import databases

T = TypeVar("T")
PATIENCE = 90.0  # seconds until a test gives up on a fact that does not come
_GLANCE = 0.002
# A worker that has no hooks and holds nothing.
POLLED: dict[str, Any] = {"hooks": [], "held": [], "limits": [], **NO_SCHEDULES.params()}
# Without autovacuum, which locks a table for a moment when it gives back its last pages.
_BLOCKING = """
SELECT pid
FROM pg_stat_activity
WHERE pid = ANY (pg_blocking_pids(%s)) AND backend_type = 'client backend'
"""


@contextmanager
def database(server_url: str, template: str) -> Iterator[str]:
    """A database for the tests of one module: making one takes longer than most of them."""
    name = f"stage_{os.getpid()}_{new_id().hex[-12:]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        databases.create(connection, name, template)
        try:
            yield make_conninfo(server_url, dbname=name)
        finally:
            databases.drop(connection, name)


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """As a session connects: one plan for all parameters, which keeps to indexes."""
    connection = psycopg.connect(url, autocommit=True)
    arrays.register(connection)
    connection.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
    return connection


def ordinals(outstanding: Multirange[int]) -> list[int]:
    return [n for piece in outstanding for n in range(piece.lower or 0, piece.upper or 0)]


def multirange(numbers: Iterable[int]) -> Multirange[int]:
    """As PostgreSQL writes it: neighbours are one range."""
    pieces: list[Range[int]] = []
    for n in sorted(numbers):
        start = n
        if pieces and pieces[-1].upper == n:
            start = pieces.pop().lower or 0
        pieces.append(Range(start, n + 1))
    return Multirange(pieces)


def json_of(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def change(batch: UUID, **values: Any) -> dict[str, Any]:
    """Parameters of change_batch; what is not given stays as it is."""
    nothing = dict.fromkeys(("priority", "concurrency", "deadline", "seconds"))
    return {"batch": batch, "no_deadline": False, **nothing, **values}


# Verdicts on an item

Judge = Callable[[Item], Verdict]


def completed(item: Item) -> Completed:
    return Completed(item, 200, b'{"answer": %d}' % item.ordinal, Usage(7, 1, 5, 2))


def emitting(item: Item, stage: str, lines: int = 1) -> Completed:
    """The item completes, and adds so many lines to a stage."""
    emitted = tuple(Emission(PYTHON + stage, b"%d" % n, b"{}") for n in range(lines))
    return Completed(item, 200, b"{}", emitted=emitted)


def failed(item: Item) -> Failed:
    return Failed(item, b'{"error": %d}' % item.ordinal, 400)


def retry(item: Item, delay: float = 0.0) -> Retried:
    return Retried(item, "rate_limit", "slow down", delay)


def deferred(item: Item, delay: float = 0.0) -> Deferred:
    return Deferred(item, delay)


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch on the stage, and its lanes."""

    id: UUID
    lanes: tuple[int, ...]


class Hand:
    """A worker, its connection, and what it does. Each act commits by itself, unless it is `holding`."""

    def __init__(self, url: str, lease: float) -> None:
        self.connection = connect(url)
        self.id = new_id()
        self.lease = timedelta(seconds=lease)

    @property
    def pid(self) -> int:
        return self.connection.info.backend_pid

    def renamed(self, lease: float = 60.0) -> Self:
        """The same connection in the hands of another worker."""
        self.id = new_id()
        self.lease = timedelta(seconds=lease)
        return self

    @contextmanager
    def holding(self) -> Iterator[None]:
        """One transaction, open until the end of the block."""
        with self.connection.transaction():
            yield

    def run(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(statement(name).text, params, prepare=True)
            return cursor.fetchall() if cursor.description else []

    def claim(
        self,
        limit: int,
        *,
        keys: Sequence[str] | None = None,
        batch: UUID | None = None,
        max_tasks: int | None = None,
        without: Sequence[UUID] = (),
        sender: str | None = None,
    ) -> list[Claim]:
        scope = spans.Scope(
            None if keys is None else tuple(keys), batch, without=tuple(without), sender=sender
        ).params()
        worker = {"worker": self.id, "name": "hand", "lease": self.lease}
        rows = self.run("claim", {**scope, **worker, "limit": limit, "max_tasks": max_tasks})
        return [spans.claim_of(row, sender) for row in rows]

    def claim_new(self, limit: int, batch: UUID, sender: str | None = None) -> int:
        """How many lines of a batch that was just announced it got."""
        worker = {"worker": self.id, "name": "hand", "lease": self.lease}
        scope = spans.Scope(batch_id=batch, sender=sender).params()
        rows = self.run("claim_new", {**scope, **worker, "limit": limit})
        return rows[0][5] if rows else 0

    def begin_step(self, batch: UUID) -> int:
        """How many lines the step has that begins by this."""
        ((lines,),) = self.run("begin_step", {"batch": batch})
        return int(lines)

    def items(self, claims: Iterable[Claim]) -> list[Item]:
        """What fetch gives for these claims, with made-up lines: line number and ordinal are the same."""
        by_span = {claim.span_id: claim for claim in claims}
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(
                "SELECT id, outstanding FROM batchline.spans WHERE id = ANY (%s) AND worker_id = %s"
                " ORDER BY id",
                (list(by_span), self.id),
            )
            return [Item(by_span[id_], n, n, b"", b"") for id_, held in cursor for n in ordinals(held)]

    def take(self, limit: int, *, keys: Sequence[str] | None = None, batch: UUID | None = None) -> list[Item]:
        """Claim and fetch."""
        return self.items(self.claim(limit, keys=keys, batch=batch))

    def settle(self, verdicts: Sequence[Verdict]) -> list[Settled]:
        grouped = Grouped(verdicts)
        settled, refused = self._settle(grouped)
        if refused and len(grouped) < len(verdicts):
            settled += self._settle(Grouped(grouped.members(refused), apart=True))[0]
        return spans.merged(settled)

    def _settle(self, grouped: Grouped) -> tuple[list[Settled], list[int]]:
        rows = self.run("settle", {"worker": self.id, **grouped.columns()})
        refused = [no for *_, no, _ in rows if no is not None]
        return [Settled(*row) for *row, no, _ in rows if no is None], refused

    def park(self, items: Sequence[Item], task: str, delay: float = 0.0) -> int:
        """Park items of one span; how many were parked."""
        ((span, lane, batch),) = {
            (item.claim.span_id, item.claim.lane_id, item.claim.batch_id) for item in items
        }
        rows = self.run(
            "park",
            {
                "worker": self.id,
                "spans": arrays.Int8Array([span]),
                "lanes": arrays.Int8Array([lane]),
                "batches": [batch],
                "ordinals": arrays.MultirangeArray([[item.ordinal for item in items]]),
                "upstreams": arrays.TextArray([b"provider"]),
                "tasks": arrays.TextArray([task.encode()]),
                "delays": arrays.Float8Array([delay]),
                "losses": arrays.Int2Array([0]),
            },
        )
        return sum(size for _, size, *_ in rows)

    def renew(self, worker: UUID, seconds: float) -> None:
        """Set how long any worker's lease lasts from now on, by the time of this hand's transaction."""
        lease = timedelta(seconds=seconds)
        self.run("renew", {"worker": worker, "name": "hand", "lease": lease, "loads": "[]", "version": "1"})

    def release(self) -> list[UUID]:
        return [batch for (batch,) in self.run("release", {"worker": self.id, "spans": None, "sent": True})]

    def close(self, batch: UUID, reason: Literal["cancel", "expire", "pause"]) -> bool:
        return bool(self.run("close", {"batch": batch, "reason": reason}))

    def resume(self, batch: UUID) -> bool:
        return bool(self.run("resume", {"batch": batch}))

    def reserve(
        self,
        batch: UUID,
        *wanted: int,
        held: int = 0,
        in_flight: bool = False,
        holder: UUID | None = None,
    ) -> tuple[int, str]:
        """Reserve for requests that cost so many nano-dollars each, and use as many tokens; how many were
        granted, and the state of the batch."""
        ((granted, state),) = self.run(
            "reserve_budget",
            {
                "batch": batch,
                "holder": holder or self.id,
                "worker": self.id,
                "held_cost": held,
                "held_tokens": held,
                "in_flight": in_flight,
                "wanted_costs": arrays.Int8Array(wanted),
                "wanted_tokens": arrays.Int8Array(wanted),
            },
        )
        return granted, state

    def append(self, batch: UUID, stage: str, lines: int = 1) -> int | None:
        """Add so many lines to a stage; the ordinal of the first, or None if the batch accepts none."""
        params = {
            "batch": batch,
            "url": PYTHON + stage,
            "custom_ids": arrays.TextArray([b"%d" % n for n in range(lines)]),
            "bodies": arrays.TextArray([b"{}"] * lines),
            "bytes": 2 * lines,
        }
        ((first,),) = self.run("append_items", params)
        return None if first is None else int(first)

    def release_items(self, batch: UUID) -> bool:
        """True if the batch accepted items until now."""
        ((released,),) = self.run("release_items", {"batch": batch})
        return bool(released)

    def conclude(self, batch: UUID) -> bool:
        """True if that froze the batch."""
        ((frozen,),) = self.run("conclude", {"batch": batch})
        return bool(frozen)

    def delete(self, batch: UUID) -> bool:
        """True if that deleted the batch, whatever its state."""
        with self.holding():
            self.run("lock_spans", {"batch": batch})
            return bool(self.run("delete_batch", {"batch": batch, "force": True}))

    def delete_by_hand(self, batch: UUID) -> None:
        self.connection.execute("DELETE FROM batchline.batches WHERE id = %s", [batch])

    def drop_deleted_lanes(self) -> None:
        """As maintenance does it, to the end."""
        while self.run("drop_deleted_lanes", {"batch": None, "chunk": 3}):
            pass

    def poll(
        self,
        *,
        keys: Sequence[str] | None = None,
        batch: UUID | None = None,
        held: Mapping[UUID, int | None] = spans.NOTHING_HELD,
    ) -> PollResult:
        scope = spans.Scope(None if keys is None else tuple(keys), batch)
        known = {"held": list(held), "limits": [limit or 0 for limit in held.values()]}
        return PollResult(*self.run("poll", {**scope.params(), **POLLED, **known, "worker": self.id})[0])

    def settle_and_conclude(self, verdicts: Sequence[Verdict]) -> list[UUID]:
        """As a worker does it; the batches that began to be finalized by that."""
        settled = self.settle(verdicts)
        begun = [row.batch_id for row in settled if row.finished]
        return begun + [
            row.batch_id
            for row in settled
            if row.closing and not row.finished and self.conclude(row.batch_id)
        ]


class Meanwhile(Generic[T]):
    """What a hand does in a thread of its own."""

    def __init__(self, hand: Hand, act: Callable[[], T], watch: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._hand = hand
        self._watch = watch
        self._thread = ThreadPoolExecutor(1)
        self._future: Future[T] = self._thread.submit(act)
        self._thread.shutdown(wait=False)

    def waits(self, excluded: Hand | None = None) -> bool:
        """Wait for one fact or the other: True, it waits for somebody's lock; False, it has ended.

        A wait for `besides` does not count: that one has just committed, and the news is on its way.
        """
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._future.done():
                return False
            blocking = {pid for (pid,) in self._watch.execute(_BLOCKING, (self._hand.pid,))}
            if blocking and not (excluded and excluded.pid in blocking):
                return True
            wait([self._future], timeout=_GLANCE)
        raise AssertionError(f"after {PATIENCE:g} s a statement neither waits for a lock nor ends")

    def result(self) -> T:
        return self._future.result(PATIENCE)


@dataclass
class Stage:
    """One database, and all hands in it."""

    url: str
    db: psycopg.Connection[tuple[Any, ...]] = field(init=False)
    _hands: list[Hand] = field(init=False, default_factory=list)

    def __enter__(self) -> Self:
        self.db = connect(self.url)
        self.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hand in self._hands:
            hand.connection.close()
        self.db.close()

    def clear(self) -> None:
        self.db.execute(
            "DELETE FROM batchline.results; DELETE FROM batchline.retry_attempts; DELETE"
            " FROM batchline.spans; DELETE FROM batchline.cursors; DELETE FROM batchline.counters;"
            "DELETE FROM batchline.lanes; DELETE FROM batchline.cause_counts;"
            "DELETE FROM batchline.batches; DELETE FROM batchline.workers;"
            "DELETE FROM batchline.deleted_lanes; DELETE FROM batchline.lines"
        )

    def hand(self, lease: float = 60.0) -> Hand:
        hand = Hand(self.url, lease)
        self._hands.append(hand)
        return hand

    def meanwhile(self, hand: Hand, act: Callable[[], T]) -> Meanwhile[T]:
        return Meanwhile(hand, act, self.db)

    def batch(
        self,
        *totals: int,
        tenant: str = "acme",
        keys: Sequence[str] = ("k",),
        seconds: float = 3600.0,
        settings: str = "{}",
        batch_id: UUID | None = None,
    ) -> Staged:
        """A batch with a lane of so many lines for each total; its lanes take turns with the keys."""
        batch = batch_id or new_id()
        rows = self.db.execute(
            """
            WITH batch AS (
                INSERT INTO batchline.batches
                    (id, tenant, file_id, completion_window, settings, total, in_progress_at, expires_at)
                VALUES
                    (%(batch)s, %(tenant)s, %(batch)s, '24h', %(settings)s, %(total)s, now(),
                     now() + make_interval(secs => %(seconds)s))
                RETURNING *
            )
            INSERT INTO batchline.lanes (batch_id, tenant, key, deadline, file_no, lane_no, model, url, total)
            SELECT b.id, b.tenant, t.key, b.expires_at, 1, t.nth, 'model', '/v1/chat/completions', t.total
            FROM batch AS b
            CROSS JOIN unnest(%(totals)s::integer[], %(keys)s::text[]) WITH ORDINALITY AS t (total, key, nth)
            ORDER BY t.nth
            RETURNING id
            """,
            {
                "batch": batch,
                "tenant": tenant,
                "settings": settings,
                "total": sum(totals),
                "seconds": seconds,
                "totals": list(totals),
                "keys": [keys[n % len(keys)] for n in range(len(totals))],
            },
        ).fetchall()
        return Staged(batch, tuple(id_ for (id_,) in rows))

    def pipeline(self, total: int, *fed: str, accepting: bool = False, settings: str = "{}") -> Staged:
        """A batch of Python operations: so many lines for the first stage, which needs no lines, and stages
        that are fed. One that accepts items has one more stage, `first`, for them."""
        stages = ("first", *fed) if accepting else fed
        batch = self.batch(total, *[0] * len(stages), settings=settings)
        urls = dict(zip(batch.lanes[1:], stages, strict=True))
        for lane, stage in urls.items():
            self.db.execute(
                "UPDATE batchline.lanes SET fed = true, drained = true, url = %s WHERE id = %s",
                (PYTHON + stage, lane),
            )
        self.db.execute("UPDATE batchline.batches SET accepting = %s WHERE id = %s", (accepting, batch.id))
        return batch

    def batches(self, totals: Sequence[int]) -> list[UUID]:
        """A batch with one lane for each total, all at once."""
        ids = [new_id() for _ in totals]
        self.db.execute(
            """
            WITH batch AS (
                INSERT INTO batchline.batches
                    (id, tenant, file_id, completion_window, settings, total, in_progress_at, expires_at)
                SELECT id, 'acme', id, '24h', '{}', total, now(), now() + interval '1 hour'
                FROM unnest(%s::uuid[], %s::integer[]) AS t (id, total)
                RETURNING *
            )
            INSERT INTO batchline.lanes (batch_id, tenant, key, deadline, file_no, lane_no, model, url, total)
            SELECT id, tenant, 'k', expires_at, 1, 0, 'model', '/v1/chat/completions', total FROM batch
            """,
            (ids, list(totals)),
        )
        return ids

    def span(
        self,
        batch: Staged,
        numbers: Iterable[int],
        *,
        lane: int = 0,
        worker: UUID | None = None,
        attempt: int = 1,
        due_in: float = 0.0,
        held_back: bool = False,
        task: str | None = None,
    ) -> int:
        """Ordinals that were handed out before: held by a worker, or free from some time on, or held back for
        a later step. The lease of a worker that nobody has seen before is over."""
        handed_out = multirange(numbers)
        self.db.execute(
            """
            WITH
            moved AS (
                UPDATE batchline.lanes AS n
                SET next = greatest(c.next, upper(%(out)s::int4multirange)),
                    drained = greatest(c.next, upper(%(out)s::int4multirange)) = n.total
                FROM batchline.current_lanes AS c
                WHERE n.id = %(lane)s AND c.id = n.id
            ),
            known AS (
                INSERT INTO batchline.workers (id, name, lease_until)
                SELECT %(worker)s, 'hand', now() - interval '1 second' WHERE %(worker)s::uuid IS NOT NULL
                ON CONFLICT DO NOTHING
            )
            DELETE FROM batchline.cursors WHERE lane_id = %(lane)s
            """,
            {"out": handed_out, "lane": batch.lanes[lane], "worker": worker},
        )
        row = self.db.execute(
            """
            INSERT INTO batchline.spans
                (lane_id, batch_id, outstanding, worker_id, attempt, available_at, upstream, task_id)
            VALUES
                (%(lane)s, %(batch)s, %(out)s, %(worker)s, %(attempt)s,
                 CASE WHEN %(held_back)s THEN '9999-12-31 00:00:00+00'
                     ELSE now() + make_interval(secs => %(due_in)s) END,
                 CASE WHEN %(task)s::text IS NOT NULL THEN 'provider' END, %(task)s)
            RETURNING id
            """,
            {
                "lane": batch.lanes[lane],
                "batch": batch.id,
                "out": handed_out,
                "worker": worker,
                "attempt": attempt,
                "due_in": due_in,
                "held_back": held_back,
                "task": task,
            },
        ).fetchone()
        assert row is not None
        return int(row[0])

    def hold_back(self, batch: Staged, step_total: int) -> None:
        """What was not handed out waits for the next step, which is due."""
        self.db.execute(
            """
            WITH
            lane AS (
                UPDATE batchline.lanes AS n
                SET next = c.next, drained = true
                FROM batchline.current_lanes AS c
                WHERE n.batch_id = %(batch)s AND c.id = n.id
                RETURNING n.id
            ),
            cursor AS (
                DELETE FROM batchline.cursors WHERE lane_id IN (SELECT id FROM lane)
            )
            UPDATE batchline.batches
            SET step = 1, step_total = %(step_total)s, step_began_at = now(), next_step_at = now()
            WHERE id = %(batch)s
            """,
            {"batch": batch.id, "step_total": step_total},
        )

    def lease(self, worker: UUID, seconds: float = 60.0) -> UUID:
        """Sets how long the lease of a worker lasts from now on; negative: it is over."""
        self.db.execute(
            """
            INSERT INTO batchline.workers (id, name, lease_until) VALUES (%s,
                'hand', now() + make_interval(secs => %s))
            ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
            """,
            (worker, seconds),
        )
        return worker

    def rows(self, query: str, *params: object) -> list[tuple[Any, ...]]:
        return self.db.execute(query.encode(), params or None).fetchall()

    def value(self, query: str, *params: object) -> Any:
        ((value,),) = self.rows(query, *params)
        return value

    def counters(self, batch: Staged) -> tuple[int, int]:
        """Completed and failed."""
        ((done, bad),) = self.rows(
            "SELECT completed, failed FROM batchline.current_batches WHERE id = %s", batch.id
        )
        return done, bad

    def counts(self, batch: Staged) -> ItemCounts:
        """How many items are in which state, as `status` shows it."""
        with self.db.cursor(row_factory=dict_row) as cursor:
            record = cursor.execute(statement("get_batch").text, {"batch": batch.id}).fetchone()
        assert record is not None
        return batch_of(record).counts

    def left_over(self) -> dict[str, int]:
        """Rows of batches in the tables that should have none."""
        tables = (
            "batches",
            "lanes",
            "cursors",
            "counters",
            "spans",
            "results",
            "retry_attempts",
            "deleted_lanes",
            "failure_causes",
            "cause_counts",
        )
        rows = {table: self.value(f"SELECT count(*) FROM batchline.{table}") for table in tables}
        return {table: count for table, count in rows.items() if count}

    def finalizing(self, batch: Staged) -> bool:
        return bool(
            self.value("SELECT finalizing_at IS NOT NULL FROM batchline.batches WHERE id = %s", batch.id)
        )

    def broken(self) -> list[tuple[Any, ...]]:
        """What contradicts the design: the one invariant, and the counters, flags and ends that follow."""
        return self.rows(_BROKEN)


# The invariant (docs/design.md) holds for a lane until its batch is frozen: then the spans of a batch that
# ended early are gone, and what they held will never run.
_BROKEN = """
WITH
piece AS (
    SELECT lane_id, int4range(ordinal, ordinal, '[]') AS numbers FROM batchline.results
    UNION ALL
    SELECT lane_id, unnest(outstanding) FROM batchline.spans
),
known AS (
    SELECT lane_id, range_agg(numbers) AS numbers, sum(upper(numbers) - lower(numbers)) AS items
    FROM piece
    GROUP BY lane_id
),
lane AS (
    SELECT
        n.*,
        coalesce(known.numbers, '{}') AS numbers,
        coalesce(known.items, 0) AS items,
        b.finalizing_at IS NOT NULL AS frozen,
        b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL AS closing,
        b.paused_at IS NOT NULL OR b.held_at IS NOT NULL AS paused,
        b.step_total IS NOT NULL AS stepped
    FROM batchline.current_lanes AS n
    JOIN batchline.batches AS b ON b.id = n.batch_id
    LEFT JOIN known ON known.lane_id = n.id
)
SELECT 'lane ' || id, 'handed out up to ' || next || ', found ' || items || ' of ' || numbers::text
FROM lane
WHERE (items <> next OR numbers <> int4multirange(int4range(0, next))) AND NOT (frozen AND closing)
UNION ALL
SELECT 'lane ' || id, 'drained: ' || drained || ', next ' || next || ', total ' || total
FROM lane
WHERE drained <> (next = total OR stepped)
UNION ALL
SELECT 'batch ' || b.id, b.step_total || ' of ' || b.total || ' lines may run, held back ' || held.items
FROM batchline.batches AS b
CROSS JOIN LATERAL (
    SELECT
        (SELECT coalesce(sum(n.total - n.next), 0) FROM batchline.current_lanes AS n WHERE n.batch_id = b.id)
        + (
            SELECT coalesce(sum(batchline.span_size(s.outstanding)), 0)
            FROM batchline.spans AS s
            WHERE s.batch_id = b.id AND s.worker_id IS NULL AND s.available_at = '9999-12-31 00:00:00+00'
        ) AS items
) AS held
WHERE b.step_total + held.items <> b.total AND b.finalizing_at IS NULL
UNION ALL
SELECT 'lane ' || id, 'open: ' || open || ', closing: ' || closing || ', paused: ' || paused
FROM lane
WHERE open = (closing OR paused)
UNION ALL
SELECT
    'batch ' || b.id,
    'counted ' || b.completed || ' + ' || b.failed || ', results ' || r.completed || ' + ' || r.failed
FROM batchline.current_batches AS b
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE results.outcome = 'completed') AS completed,
        count(*) FILTER (WHERE results.outcome = 'failed') AS failed
    FROM batchline.lanes
    JOIN batchline.results ON results.lane_id = lanes.id
    WHERE lanes.batch_id = b.id
) AS r
WHERE (b.completed, b.failed) <> (r.completed, r.failed)
UNION ALL
SELECT 'batch ' || b.id, 'frozen too early, or not although all is done'
FROM batchline.current_batches AS b
WHERE (b.finalizing_at IS NOT NULL) <> (b.completed + b.failed = b.total AND NOT b.accepting)
  AND NOT (b.finalizing_at IS NOT NULL AND (b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL))
UNION ALL
SELECT 'batch ' || f.batch_id, 'cause ' || f.key || ' counts ' || f.failed || ', results ' || r.failed
FROM batchline.current_failure_causes AS f
CROSS JOIN LATERAL (
    SELECT count(*) AS failed
    FROM batchline.lanes
    JOIN batchline.results ON results.lane_id = lanes.id
    WHERE lanes.batch_id = f.batch_id AND results.cause = f.key
) AS r
WHERE f.failed <> r.failed
UNION ALL
SELECT 'batch ' || b.id, 'counts ' || b.total || ' lines, its lanes have ' || n.total
FROM batchline.current_batches AS b
CROSS JOIN LATERAL (
    SELECT sum(total) AS total FROM batchline.current_lanes WHERE batch_id = b.id
) AS n
WHERE b.total <> n.total
UNION ALL
SELECT 'lane ' || n.id, 'was fed ' || n.total || ' lines, found ' || l.lines || ' up to ' || l.next
FROM lane AS n
CROSS JOIN LATERAL (
    SELECT
        count(*) AS lines,
        coalesce(max(ordinal) + 1, 0) AS next,
        array_agg(line_no ORDER BY ordinal) = array_agg(line_no ORDER BY line_no) AS ordered
    FROM batchline.lines
    WHERE file_no = n.file_no AND lane_no = n.lane_no
) AS l
WHERE n.fed AND NOT (l.lines = n.total AND l.next = n.total AND coalesce(l.ordered, true))
UNION ALL
SELECT 'batch ' || n.batch_id, 'has line ' || l.line_no || ' more than once'
FROM lane AS n
JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
GROUP BY n.batch_id, l.line_no
HAVING count(*) > 1
UNION ALL
SELECT 'span ' || s.id, 'left over in a batch that is frozen'
FROM batchline.spans AS s
JOIN batchline.batches AS b ON b.id = s.batch_id
WHERE b.finalizing_at IS NOT NULL
"""
