"""Plan guards: on large tables every hot statement keeps to its indexes, and reads what it needs and no more.

The plans are the ones that workers get: generic, made once for all parameters (docs/decisions/0005). The
tests look at the plan and at how many rows it read, never at the time it took.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

from batchline.model.emission import PYTHON
from batchline.model.ids import new_id
from batchline.store.spans import Scope
from batchline.store.statements import statement
from tests.support import scenes
from tests.support.scenes import POLLED, Stage, Staged

LIMIT = 500
TENANTS, KEYS = 100, 4
HELD, WORKERS = 2_000, 20
IN_FLIGHT_LANES = 200
JIT_ABOVE_COST = (
    100_000  # PostgreSQL's default; to compile a claim takes a hundred times as long as to run it
)

# Their session never lets PostgreSQL compile a statement (store/monitoring.py).
UNCOMPILED = {"demand"}

TYPES = {
    "api": "text",
    "base_url": "text",
    "refused": "boolean",
    "cancelling": "boolean",
    "resubmissions": "smallint",
    "crashes": "smallint",
    "doubled": "integer",
    "error": "text",
    "key": "text",
    "max_bytes": "bigint",
    "max_chunks": "integer",
    "max_tokens": "bigint",
    "missing": "integer",
    "outcome": "text",
    "overhead": "integer",
    "provider_batch": "text",
    "searches": "smallint",
    "span": "bigint",
    "state": "text",
    "before": "text",
    "tokens_per_byte": "float8",
    "unknown": "integer",
    "unreadable": "integer",
    "after": "integer",
    "after_at": "timestamptz",
    "after_id": "uuid",
    "after_tenant": "text",
    "batch": "uuid",
    "batches": "uuid[]",
    "below": "text[]",
    "bodies": "text[]",
    "bytes": "bigint",
    "excluded": "text[]",
    "cached_tokens": "bigint[]",
    "cause_codes": "text[]",
    "cause_keys": "text[]",
    "cause_messages": "text[]",
    "causes": "text[]",
    "channel": "text",
    "by": "text",
    "chunk": "integer",
    "cursors": "integer[]",
    "custom_id": "text",
    "custom_ids": "text[]",
    "delay": "float8",
    "delays": "float8[]",
    "emitted_bodies": "text[]",
    "emitted_groups": "integer[]",
    "emitted_ids": "text[]",
    "emitted_urls": "text[]",
    "ended_groups": "integer[]",
    "ended_input_tokens": "integer[]",
    "ended_line_nos": "integer[]",
    "ended_ordinals": "integer[]",
    "ended_output_tokens": "integer[]",
    "ended_settling": "real[]",
    "ended_upstream": "real[]",
    "error_codes": "text[]",
    "input_tokens": "bigint[]",
    "endpoint": "text",
    "file": "uuid",
    "file_no": "bigint",
    "held": "uuid[]",
    "hooks": "text[]",
    "keys": "text[]",
    "kinds": "smallint[]",
    "lane_nos": "integer[]",
    "lanes": "bigint[]",
    "lease": "interval",
    "largest": "integer",
    "limit": "smallint",
    "limits": "integer[]",
    "losses": "smallint[]",
    "max_lines": "integer",
    "max_tasks": "integer",
    "messages": "text[]",
    "metadata": "jsonb",
    "models": "text[]",
    "name": "text",
    "no": "bigint",
    "ordinals": "int4multirange[]",
    "other": "text",
    "output_expires_after": "integer",
    "output_tokens": "bigint[]",
    "outputs": "text[]",
    "planned_output": "uuid",
    "reason": "text",
    "sender": "text",
    "senders": "text[]",
    "reasoning_tokens": "bigint[]",
    "costs": "bigint[]",
    "resume_key": "text",
    "retried_groups": "integer[]",
    "retried_ordinals": "integer[]",
    "retried_settling": "real[]",
    "retried_upstream": "real[]",
    "room": "integer",
    "sample": "integer",
    "schedule_definitions": "text[]",
    "schedule_names": "text[]",
    "schedule_tenant": "text",
    "sent": "boolean",
    "settings": "jsonb",
    "sizes": "integer[]",
    "spans": "bigint[]",
    "status_codes": "smallint[]",
    "tasks": "text[]",
    "tenant": "text",
    "until": "integer",
    "under_way": "uuid[]",
    "upstreams": "text[]",
    "url": "text",
    "urls": "text[]",
    "window": "text",
    "seconds": "float8",
    "since": "date",
    "after_period": "date",
    "window_seconds": "float8",
    "without": "uuid[]",
    "worker": "uuid",
}

EMITS_NOTHING: dict[str, list[Any]] = {
    "emitted_groups": [],
    "emitted_urls": [],
    "emitted_ids": [],
    "emitted_bodies": [],
}

# Names that two statements use for different things.
OTHER_TYPES = {
    ("chunk_lines", "bodies"): "boolean",
    ("chunk_lines", "ordinals"): "integer[]",
    ("advance_chunk", "file"): "text",
    ("release_chunk", "held"): "boolean",
    **{
        (f"{name}_chunk", "chunk"): "uuid"
        for name in ("abandoned", "advance", "end", "forget", "form", "read", "release")
    },
    ("settle", "ordinals"): "int4multirange[]",
    ("take_hook_delivery", "lease"): "float8",
    ("usage_report", "until"): "date",
}

# 10,000 lanes of 100 tenants at 4 keys, and two keys of a kind of their own: `alone`, where one tenant has
# 100 lanes, and `tiny`, where each of ten tenants has 100 lanes of one line. All of them run the same file.
LANES_SQL = """
WITH
lane AS (
    SELECT
        't' || n % 100 AS tenant,
        'k' || n / 100 % 4 AS key,
        1000 AS total,
        n
    FROM generate_series(0, 9999) AS n
    UNION ALL
    SELECT 'loner', 'alone', 1000, n FROM generate_series(1, 100) AS n
    UNION ALL
    SELECT 'dwarf' || n % 10, 'tiny', 1, n FROM generate_series(1, 1000) AS n
),
batch AS (
    INSERT INTO batchline.batches
        (id, tenant, file_id, endpoint, completion_window, settings, total, in_progress_at, expires_at)
    SELECT
        gen_random_uuid(), tenant, gen_random_uuid(), key, '24h', '{}', total, now(),
        now() + interval '1 day' + n * interval '1 second'
    FROM lane
    RETURNING *
)
INSERT INTO batchline.lanes (batch_id, tenant, key, deadline, file_no, lane_no, model, url, total)
SELECT id, tenant, endpoint, expires_at, 1, 0, 'model', '/v1/chat/completions', total
FROM batch
"""

# What fair claims leave behind: the most urgent lanes are in many hands, and far more spans wait for another
# try.
SPANS_SQL = """
WITH
urgent AS (
    SELECT id, batch_id, row_number() OVER (ORDER BY deadline, id) - 1 AS nth
    FROM batchline.lanes
    WHERE key LIKE 'k_'
    ORDER BY deadline, id
    LIMIT 200
),
span AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, worker_id, available_at, attempt)
    SELECT
        u.id,
        u.batch_id,
        int4multirange(int4range((g / 200 * 5)::integer, (g / 200 * 5 + 5)::integer)),
        CASE WHEN g < %(held)s THEN (%(workers)s::uuid[])[1 + g %% cardinality(%(workers)s::uuid[])] END,
        CASE WHEN g < %(held)s THEN now() ELSE now() + interval '1 hour' END,
        CASE WHEN g < %(held)s THEN 1 ELSE 2 END
    FROM generate_series(0, 19999) AS g
    JOIN urgent AS u ON u.nth = g %% 200
    RETURNING lane_id
)
UPDATE batchline.lanes SET next = 500 WHERE id IN (SELECT lane_id FROM span)
"""

ROWS_SQL = """
INSERT INTO batchline.lines SELECT 1, 0, n, n + 1, 'line-' || n, '{}' FROM generate_series(0, 19999) AS n;
INSERT INTO batchline.results
SELECT 1000000 + n / 1000, n % 1000, n % 1000, 'completed', 200, 1, 1, 1, now(), '{}'
FROM generate_series(0, 99999) AS n;
INSERT INTO batchline.hook_deliveries
    (hook, event_id, batch_id, type, occurred_at, available_at, delivered_at)
SELECT
    'hook-' || n % 4, gen_random_uuid(), gen_random_uuid(), 'batch.completed', now(),
    now() - n * interval '1 second', CASE WHEN n % 4 < 3 THEN now() END
FROM generate_series(0, 19999) AS n;
VACUUM ANALYZE
"""


@dataclass(frozen=True)
class Plan:
    """What a statement did with tables: how it came to their rows, and how many of them it read."""

    cost: float
    seq_scans: set[str]
    rows: Mapping[str, int]

    @classmethod
    def of(cls, root: Mapping[str, Any]) -> "Plan":
        seq_scans: set[str] = set()
        rows: Counter[str] = Counter()
        nodes = [root]
        while nodes:
            node = nodes.pop()
            nodes += node.get("Plans", [])
            if "Scan" in node["Node Type"] and "Relation Name" in node:
                table, loops = node["Relation Name"], node["Actual Loops"]
                dropped = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
                rows[table] += round((node["Actual Rows"] + dropped) * loops)
                if node["Node Type"] == "Seq Scan":
                    seq_scans.add(table)
        return cls(root["Total Cost"], seq_scans, rows)

    def with_functions(self, counted: "Plan") -> "Plan":
        """This plan, and what functions that it calls have read of other tables."""
        hidden = set(counted.rows) - set(self.rows)
        return Plan(
            self.cost,
            self.seq_scans | (counted.seq_scans & hidden),
            Counter({**counted.rows, **self.rows}),
        )

    @classmethod
    def inside(cls, cost: float, before: "Counts", after: "Counts") -> "Plan":
        """What was done inside a function: EXPLAIN does not look into it."""
        scans = {table for table in after if after[table][0] > before.get(table, (0, 0))[0]}
        rows = {table: after[table][1] - before.get(table, (0, 0))[1] for table in after}
        return cls(cost, scans, Counter(rows))


Counts = dict[str, tuple[int, int]]
"""For each table: sequential scans, and rows read."""

COUNTS_SQL = """
SELECT relname, seq_scan, seq_tup_read + coalesce(idx_tup_fetch, 0)
FROM pg_stat_xact_user_tables
WHERE schemaname = 'batchline'
"""


def counts(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Counts:
    return {table: (scans, rows) for table, scans, rows in cursor.execute(COUNTS_SQL)}


@dataclass(frozen=True)
class Ground:
    """The loaded database."""

    stage: Stage
    workers: list[UUID]

    def explain(self, name: str, /, **params: Any) -> Plan:
        """Run a statement as the plan cache would, look at its plan, and undo it."""
        text, names = statement(name).numbered_in("batchline")
        types = [OTHER_TYPES.get((name, param), TYPES[param]) for param in names]
        connection = self.stage.db
        with connection.transaction(force_rollback=True), psycopg.ClientCursor(connection) as cursor:
            cursor.execute(f"PREPARE guarded {_listed(types)} AS {text}".encode())
            try:
                marks = _listed(["%s"] * len(names))
                before = counts(cursor)
                cursor.execute(
                    f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE guarded {marks}".encode(),
                    [params[param] for param in names],
                )
                row = cursor.fetchone()
                assert row is not None
                plan = Plan.of(row[0][0]["Plan"])
                plan = plan.with_functions(Plan.inside(plan.cost, before, counts(cursor)))
                # Before 18, each scan of a small table without an index, which is disabled, adds 10^10.
                cost = plan.cost % 1e10
                assert cost < JIT_ABOVE_COST or name in UNCOMPILED, (
                    "PostgreSQL would compile this, each time it runs"
                )
                return plan
            finally:
                cursor.execute("DEALLOCATE guarded")

    def claim(
        self,
        *,
        keys: list[str] | None = None,
        excluded: Sequence[str] = (),
        below: list[str] | None = None,
        batch: UUID | None = None,
        max_tasks: int | None = None,
    ) -> Plan:
        return self.explain(
            "claim",
            keys=keys,
            excluded=list(excluded),
            below=below,
            without=[],
            batch=batch,
            worker=new_id(),
            name="worker",
            lease=timedelta(seconds=60),
            limit=LIMIT,
            max_tasks=max_tasks,
            sender=None,
        )


def _listed(texts: Sequence[str]) -> str:
    return f"({', '.join(texts)})" if texts else ""


@pytest.fixture(scope="module")
def ground(server_url: str, template: str) -> Iterator[Ground]:
    with scenes.database(server_url, template) as url, Stage(url) as stage:
        workers = [stage.lease(new_id(), 3600) for _ in range(WORKERS)]
        stage.db.execute(LANES_SQL)
        stage.db.execute(SPANS_SQL, {"held": HELD, "workers": workers})
        for command in ROWS_SQL.split(";"):
            stage.db.execute(command.encode())
        # It would count what tests roll back, and change plans in the middle.
        for (table,) in stage.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'batchline'"):
            stage.db.execute(f"ALTER TABLE batchline.{table} SET (autovacuum_enabled = false)".encode())
        yield Ground(stage, workers)


@pytest.fixture
def busy_batch(ground: Ground) -> UUID:
    """A batch with spans of all kinds."""
    found: UUID = ground.stage.value("SELECT batch_id FROM batchline.spans ORDER BY id LIMIT 1")
    return found


# Claim


def test_a_claim_for_all_keys_reads_no_table_from_end_to_end(ground: Ground) -> None:
    plan = ground.claim()

    assert not plan.seq_scans - {"workers"}
    # A look at each tenant of each key, at each lane in flight, and five at each lane that is claimed:
    # counted, chosen, locked, read, returned. Far less than there are.
    assert plan.rows["lanes"] <= TENANTS * (KEYS + 1) + IN_FLIGHT_LANES + 5 * LIMIT
    assert plan.rows["batches"] <= LIMIT


def test_a_claim_for_one_key_looks_at_its_tenants_only(ground: Ground) -> None:
    plan = ground.claim(keys=["k1"])

    assert not plan.seq_scans - {"workers"}
    assert plan.rows["lanes"] <= TENANTS + IN_FLIGHT_LANES + 6 * TENANTS + 10


def test_a_claim_for_all_but_some_keys_looks_at_the_tenants_of_the_others_only(ground: Ground) -> None:
    plan = ground.claim(excluded=["k0", "k1", "k2", "alone", "tiny"])

    assert not plan.seq_scans - {"workers"}
    assert plan.rows["lanes"] <= KEYS + 2 + TENANTS + IN_FLIGHT_LANES + 6 * TENANTS + 10


def test_a_claim_for_keys_that_begin_alike_looks_at_the_tenants_of_those_only(ground: Ground) -> None:
    plan = ground.claim(below=["k1%"], excluded=["k3"])

    assert not plan.seq_scans - {"workers"}
    assert plan.rows["lanes"] <= KEYS + 2 + TENANTS + IN_FLIGHT_LANES + 6 * TENANTS + 10


def test_a_claim_for_keys_that_nothing_begins_with_looks_at_the_keys_only(ground: Ground) -> None:
    plan = ground.claim(below=["http://%", "https://%"])

    assert not plan.seq_scans - {"workers"}
    assert plan.rows["lanes"] <= KEYS + 5
    assert plan.rows["spans"] <= 3 * WORKERS


def test_a_claim_for_a_tenant_alone_looks_at_no_other(ground: Ground) -> None:
    plan = ground.claim(keys=["alone"])

    assert not plan.seq_scans - {"workers"}
    assert plan.rows["lanes"] <= 10, "one lane is enough"
    assert plan.rows["spans"] <= WORKERS + 10, "what is in flight is of no interest when nobody else waits"


# Of one lane, as many tasks as a provider may have at most.
PARKED = 100_000
PARKED_SQL = """
INSERT INTO batchline.spans (lane_id, batch_id, outstanding, upstream, task_id, available_at)
SELECT n.id, n.batch_id, int4multirange(int4range(g, g + 1)), n.key, 'task-' || g, %s
FROM generate_series(1000, 999 + %s) AS g
CROSS JOIN (SELECT * FROM batchline.lanes WHERE key = 'alone' ORDER BY deadline LIMIT 1) AS n
"""


@pytest.fixture
def parked(ground: Ground, request: pytest.FixtureRequest) -> Iterator[int]:
    """100,000 tasks in one lane; how many spans a claim for its key reads without them."""
    without = ground.claim(keys=["alone"]).rows["spans"]
    with ground.stage.db.transaction(force_rollback=True):
        now = datetime.now(UTC)
        due = now - timedelta(hours=1) if request.param == "due" else now + timedelta(hours=1)
        ground.stage.db.execute(PARKED_SQL, (due, PARKED))
        yield without


@pytest.mark.parametrize("parked", ["waiting"], indirect=True)
def test_100_000_parked_tasks_cost_a_claim_nothing(ground: Ground, parked: int) -> None:
    plan = ground.claim(keys=["alone"])

    assert not plan.seq_scans - {"workers"}
    assert plan.rows["spans"] <= parked + 2, "each lane's first free span"


@pytest.mark.parametrize("parked", ["due"], indirect=True)
def test_a_claim_of_due_tasks_reads_no_more_of_100_000_than_it_takes(ground: Ground, parked: int) -> None:
    plan = ground.claim(keys=["alone"])

    assert not plan.seq_scans - {"workers"}
    # Found, locked, taken, returned.
    assert plan.rows["spans"] <= parked + 5 * LIMIT


@pytest.mark.parametrize("parked", ["waiting", "due"], indirect=True)
@pytest.mark.parametrize("max_tasks", [1_000, PARKED])
def test_a_claim_with_a_limit_counts_tasks_no_further_than_the_limit(
    ground: Ground, parked: int, max_tasks: int
) -> None:
    plan = ground.claim(keys=["alone"], max_tasks=max_tasks)

    assert not plan.seq_scans - {"workers"}
    assert plan.rows["spans"] <= parked + max_tasks + HELD + 5 * LIMIT


def test_a_claim_of_tiny_lanes_reads_as_many_as_it_takes(ground: Ground) -> None:
    plan = ground.claim(keys=["tiny"])

    assert not plan.seq_scans - {"workers"}
    # These are drained, too.
    assert plan.rows["lanes"] <= IN_FLIGHT_LANES + 6 * LIMIT + 50


def test_a_claim_for_one_batch_looks_at_its_lanes_only(ground: Ground, busy_batch: UUID) -> None:
    plan = ground.claim(batch=busy_batch)

    assert not plan.seq_scans - {"workers"}
    assert plan.rows["lanes"] <= 10
    assert plan.rows["spans"] <= WORKERS + 10


def test_a_claim_of_free_spans_stops_when_it_has_enough(ground: Ground) -> None:
    with ground.stage.db.transaction(force_rollback=True):
        ground.stage.db.execute(
            "UPDATE batchline.spans SET available_at = now() WHERE worker_id IS NULL AND id % 10 = 0"
        )
        plan = ground.claim()

    assert not plan.seq_scans - {"workers"}
    # One probe for each lane with free spans, and one look at what is in flight. Then of 1,800 due spans of
    # five items each a hundred are enough; each is found, locked, updated, returned.
    assert plan.rows["spans"] <= IN_FLIGHT_LANES + HELD + LIMIT


def test_a_claim_takes_over_from_a_dead_worker_by_its_index(ground: Ground) -> None:
    with ground.stage.db.transaction(force_rollback=True):
        ground.stage.lease(ground.workers[0], -1)
        plan = ground.claim(keys=["alone", "k0", "k1", "k2", "k3"])

    assert not plan.seq_scans - {"workers"}


# The others


def test_a_fetch_reads_the_lines_of_its_spans_only(ground: Ground) -> None:
    spans = [
        row[0]
        for row in ground.stage.rows("SELECT id FROM batchline.spans WHERE worker_id = %s", ground.workers[0])
    ]

    plan = ground.explain("fetch", spans=spans, worker=ground.workers[0], largest=2**20)

    assert not plan.seq_scans
    assert 0 < plan.rows["lines"] <= 5 * len(spans)
    assert plan.rows["spans"] == len(spans)
    assert plan.rows["lanes"] <= len(spans)


def test_the_first_claim_of_a_new_batch_looks_at_that_batch_alone(ground: Ground) -> None:
    ((batch,),) = ground.stage.rows("SELECT batch_id FROM batchline.lanes WHERE open AND NOT drained LIMIT 1")

    plan = ground.explain(
        "claim_new",
        batch=batch,
        keys=None,
        excluded=["k3"],
        below=None,
        without=[],
        sender=None,
        worker=new_id(),
        name="worker",
        lease=timedelta(seconds=60),
        limit=64,
    )

    assert not plan.seq_scans
    # Found, locked, read, returned. PostgreSQL 15 counts what claims before have rolled back, too.
    assert plan.rows["lanes"] <= 10
    assert plan.rows["batches"] == 1
    assert plan.rows["lines"] <= 64


def test_a_settle_finds_its_spans_and_batches_by_key(ground: Ground) -> None:
    worker = ground.workers[0]
    held = ground.stage.rows(
        """
        SELECT s.id, s.lane_id, s.batch_id, n
        FROM batchline.spans AS s, unnest(s.outstanding) AS piece,
            generate_series(lower(piece), upper(piece) - 1) AS n
        WHERE s.worker_id = %s
        LIMIT 500
        """,
        worker,
    )
    size = len(held)
    claims = sorted({(span, lane, batch) for span, lane, batch, _ in held})
    spans = [span for span, *_ in claims]
    groups = [[n for of, *_, n in held if of == span] for span in spans]
    numbers = [1 + spans.index(span) for span, *_ in held]

    plan = ground.explain(
        "settle",
        worker=worker,
        spans=spans,
        kinds=[n % 4 for n in range(len(spans))],
        status_codes=[200] * len(spans),
        delays=[1.0] * len(spans),
        ordinals=[scenes.multirange(group) for group in groups],
        sizes=[len(group) for group in groups],
        input_tokens=[1] * len(spans),
        cached_tokens=[0] * len(spans),
        output_tokens=[1] * len(spans),
        reasoning_tokens=[0] * len(spans),
        costs=[0] * len(spans),
        ended_groups=numbers,
        ended_line_nos=[n for *_, n in held],
        ended_ordinals=[n for *_, n in held],
        ended_input_tokens=[1] * size,
        ended_output_tokens=[1] * size,
        outputs=["{}"] * size,
        ended_upstream=[0.5] * size,
        ended_settling=[0.01] * size,
        retried_groups=numbers,
        retried_ordinals=[n for *_, n in held],
        error_codes=["rate_limit"] * size,
        messages=["slow down"] * size,
        retried_upstream=[0.5] * size,
        retried_settling=[0.01] * size,
        causes=["overloaded" if n % 4 in (1, 2) else None for n in range(len(spans))],
        lanes=[lane for _, lane, _ in claims],
        batches=[batch for *_, batch in claims],
        cause_keys=["overloaded"],
        cause_codes=["http_503"],
        cause_messages=["overloaded"],
        senders=[None] * len(spans),
        **EMITS_NOTHING,
    )

    assert size == LIMIT
    assert not plan.seq_scans
    assert plan.rows["spans"] <= 2 * len(set(spans)) + 10
    # Of each: whose it is, locked, read.
    assert plan.rows["batches"] <= 3 * len(set(spans))


# Fed lanes


@contextmanager
def a_backlog(ground: Ground) -> Iterator[Staged]:
    """A batch that accepts items, of which one stage has 5,000 free spans. It is undone."""
    db = ground.stage.db
    with db.transaction(force_rollback=True):
        batch = ground.stage.pipeline(1000, "second", "third", accepting=True)
        free = "SELECT %s, %s, int4multirange(int4range(n, n + 1)) FROM generate_series(0, 4999) AS n"
        db.execute(
            f"INSERT INTO batchline.spans (lane_id, batch_id, outstanding) {free}".encode(),
            (batch.lanes[-1], batch.id),
        )
        db.execute("INSERT INTO batchline.cursors (lane_id, next) VALUES (%s, 5000)", (batch.lanes[-1],))
        db.execute(
            "INSERT INTO batchline.counters (batch_id, completed, failed, input_tokens, cached_tokens,"
            " output_tokens, reasoning_tokens, added) VALUES (%s, 0, 0, 0, 0, 0, 0, 5000)",
            (batch.id,),
        )
        yield batch


def one_verdict(ground: Ground, batch: Staged, *, emits: str, lines: int) -> dict[str, Any]:
    """A settle of one completed line, which emits so many lines."""
    worker = ground.workers[0]
    span = ground.stage.span(batch, [0], worker=worker)
    nothing: dict[str, list[Any]] = {
        name: []
        for name in (
            *("retried_groups", "retried_ordinals", "error_codes", "messages", "retried_upstream"),
            *("retried_settling", "causes", "cause_keys", "cause_codes", "cause_messages"),
            "senders",
        )
    }
    numbers = ("sizes", "ended_groups", "ended_line_nos", "ended_input_tokens", "ended_output_tokens")
    zeros = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "costs", "delays")
    return {
        **nothing,
        **{name: [1] for name in numbers},
        **{name: [0] for name in zeros},
        "worker": worker,
        "spans": [span],
        "kinds": [0],
        "status_codes": [200],
        "ordinals": [scenes.multirange([0])],
        "ended_ordinals": [0],
        "outputs": ["{}"],
        "ended_upstream": [0.5],
        "ended_settling": [0.01],
        "lanes": [batch.lanes[0]],
        "batches": [batch.id],
        "emitted_groups": [1] * lines,
        "emitted_urls": [PYTHON + emits] * lines,
        "emitted_ids": [str(n) for n in range(lines)],
        "emitted_bodies": ["{}"] * lines,
    }


@pytest.mark.parametrize("stage", ["second", "third"], ids=["idle", "with a backlog"])
def test_an_emission_reads_one_span_of_a_stage_whatever_the_others_have(ground: Ground, stage: str) -> None:
    with a_backlog(ground) as batch:
        plan = ground.explain("settle", **one_verdict(ground, batch, emits=stage, lines=100))

    assert not plan.seq_scans
    # Found, locked and deleted; and one of the stage.
    assert plan.rows["spans"] <= 10
    assert plan.rows["lanes"] <= 20
    assert plan.rows["batches"] <= 10
    assert plan.rows["cursors"] <= 10
    assert plan.rows["counters"] <= 10
    assert plan.rows["lines"] == 0


def test_appending_items_reads_the_lanes_of_its_batch_only(ground: Ground) -> None:
    items = [str(n) for n in range(LIMIT)]
    with a_backlog(ground) as batch:
        url = PYTHON + "second"
        params = {"batch": batch.id, "url": url, "custom_ids": items, "bodies": items, "bytes": 2_000}
        plan = ground.explain("append_items", **params)

    assert not plan.seq_scans
    assert plan.rows["spans"] <= 5
    assert plan.rows["lanes"] <= 20
    assert plan.rows["batches"] <= 10
    assert plan.rows["lines"] == 0


def test_a_release_of_items_reads_the_lanes_of_its_batch_only(ground: Ground) -> None:
    with a_backlog(ground) as batch:
        plan = ground.explain("release_items", batch=batch.id)

    assert not plan.seq_scans
    assert plan.rows["spans"] == 0
    assert plan.rows["lanes"] <= 20
    assert plan.rows["batches"] <= 10


def test_a_claim_of_a_stage_with_a_backlog_reads_as_many_spans_as_it_takes(ground: Ground) -> None:
    with a_backlog(ground) as batch:
        plan = ground.claim(batch=batch.id)

    assert not plan.seq_scans - {"workers"}
    # Each is counted, found, locked, updated and returned.
    assert plan.rows["spans"] <= 6 * LIMIT + WORKERS + 10


# Finalizing and polls


def test_taking_a_batch_to_finalize_looks_once_at_each_tenant(ground: Ground) -> None:
    with ground.stage.db.transaction(force_rollback=True):
        ground.stage.db.execute("UPDATE batchline.batches SET finalizing_at = now()")
        plan = ground.explain(
            "claim_finalizing",
            batch=None,
            worker=new_id(),
            name="worker",
            lease=timedelta(seconds=60),
            under_way=[],
            after_tenant="t5",
            max_lines=None,
        )

    assert not plan.seq_scans - {"workers"}
    # Of the 10,000 that wait: one of each of 100 tenants, and the one that is taken.
    assert plan.rows["batches"] <= 150


@pytest.mark.parametrize("keys", [None, ["k1"], ["nothing here"]], ids=["all keys", "one key", "no such key"])
def test_a_poll_looks_at_the_front_of_each_index(ground: Ground, keys: list[str] | None) -> None:
    plan = ground.explain(
        "poll", **Scope(None if keys is None else tuple(keys)).params(), worker=new_id(), **POLLED
    )

    assert not plan.seq_scans - {"workers", "maintenance_tasks", "outbox", "webhooks"}
    if keys is None:
        # One span for each holder, and the first free one of each lane. Before 18, averages are rounded.
        assert plan.rows["spans"] <= WORKERS + IN_FLIGHT_LANES + 1
        assert plan.rows["lanes"] <= 2 * WORKERS + IN_FLIGHT_LANES


def test_a_poll_for_one_batch_looks_at_that_batch(ground: Ground, busy_batch: UUID) -> None:
    plan = ground.explain("poll", **Scope(batch_id=busy_batch).params(), worker=new_id(), **POLLED)

    assert not plan.seq_scans - {"workers", "maintenance_tasks", "outbox", "webhooks"}


def test_the_search_for_batches_near_their_deadline_reads_those_alone(ground: Ground) -> None:
    """The deadlines of all batches lie from one day on, most of them a second apart."""
    none = ground.explain("near_deadline", keys=["k1"], excluded=[], seconds=3600.0)
    assert none.rows["batches"] == none.rows["lanes"] == 0
    some = ground.explain("near_deadline", keys=None, excluded=[], seconds=86_400.0 + 600)
    assert not some.seq_scans
    assert some.rows["batches"] <= 2_000
    assert some.rows["lanes"] <= 2_000
    assert some.rows["spans"] == 0, "fresh lines wait in each lane"


def test_a_release_finds_the_spans_of_its_worker(ground: Ground) -> None:
    plan = ground.explain("release", worker=ground.workers[0], spans=None, sent=True)

    assert not plan.seq_scans
    assert plan.rows["spans"] <= 2 * HELD / WORKERS


def test_a_park_finds_its_span(ground: Ground) -> None:
    ((span, lane, batch, outstanding),) = ground.stage.rows(
        "SELECT id, lane_id, batch_id, outstanding FROM batchline.spans WHERE id = 1"
    )

    plan = ground.explain(
        "park",
        worker=ground.workers[0],
        spans=[span],
        lanes=[lane],
        batches=[batch],
        ordinals=[outstanding],
        upstreams=["provider"],
        tasks=["task"],
        delays=[1.0],
        losses=[0],
    )

    assert not plan.seq_scans


@pytest.mark.parametrize("name", ["close", "resume", "conclude"])
def test_closing_and_concluding_touch_one_batch_only(ground: Ground, busy_batch: UUID, name: str) -> None:
    spans = ground.stage.value("SELECT count(*) FROM batchline.spans WHERE batch_id = %s", busy_batch)
    with ground.stage.db.transaction(force_rollback=True):
        columns = {"resume": "paused_at = now()", "close": "paused_at = NULL"}
        change = columns.get(name, "cancelling_at = now()")
        ground.stage.db.execute(
            f"UPDATE batchline.batches SET {change} WHERE id = %s".encode(), (busy_batch,)
        )
        plan = ground.explain(name, batch=busy_batch, reason="cancel")

    assert not plan.seq_scans - {"workers"}
    assert plan.rows["batches"] <= 2
    assert plan.rows["lanes"] <= 2
    assert plan.rows["spans"] <= 4 * spans


# Suspects


def test_the_search_for_suspects_of_other_workers_reads_held_spans_only(ground: Ground) -> None:
    plan = ground.explain("suspects_elsewhere", worker=ground.workers[0], crashes=2)

    assert not plan.seq_scans
    assert 0 < plan.rows["spans"] <= HELD


# Chunks for providers

DONE_CHUNKS, OPEN_CHUNKS = 50_000, 20
# Each of the open ones has a span that no worker holds. The batch of the first open one has no other chunk.
# Their spans are newer than all others: a merge that begins with the oldest would read all of these.
FIRST_CHUNK_SPAN = 1_000_000_001
CHUNKS_SQL = """
WITH
chunk AS (
    INSERT INTO batchline.provider_chunks
        (id, batch_id, lane_id, span_id, upstream, base_url, api, state, attempt, ordinals,
            lines, bytes, tokens)
    SELECT
        gen_random_uuid(), n.batch_id, n.id, 1000000000 + g, 'relay', 'http://relay', 'openai',
        CASE WHEN g > 20 THEN 'done' ELSE 'submitted' END,
        1, int4multirange(int4range(900, 950)), 50, 1000, 250
    FROM generate_series(1, 50020) AS g
    JOIN (SELECT *, row_number() OVER (ORDER BY id) AS nth FROM batchline.lanes WHERE key = 'alone') AS n
        ON n.nth = CASE WHEN g > 20 THEN 21 + g % 70 ELSE g END
    RETURNING *
)
INSERT INTO batchline.spans (id, lane_id, batch_id, outstanding, upstream, task_id, available_at)
OVERRIDING SYSTEM VALUE
SELECT span_id, lane_id, batch_id, ordinals, upstream, 'chunk:' || id, '9998-01-01 00:00:00+00'
FROM chunk
WHERE state <> 'done'
"""
TARGET = {"base_url": "http://relay", "api": "openai"}
IN_SCOPE: dict[str, Any] = {"keys": ["relay"], "excluded": [], "below": None, "batch": None, **TARGET}


class OpenChunk(NamedTuple):
    id: UUID
    span: int
    batch: UUID


@pytest.fixture
def held_chunk(ground: Ground) -> Iterator[OpenChunk]:
    """One of many chunks, held by the first worker."""
    with ground.stage.db.transaction(force_rollback=True):
        ground.stage.db.execute(CHUNKS_SQL)
        ground.stage.db.execute(
            "UPDATE batchline.spans SET worker_id = %s WHERE id = %s", [ground.workers[0], FIRST_CHUNK_SPAN]
        )
        ground.stage.db.execute("ANALYZE batchline.provider_chunks")
        # As sessions do.
        ground.stage.db.execute("SET LOCAL enable_seqscan = off")
        ((id, batch),) = ground.stage.rows(
            "SELECT id, batch_id FROM batchline.provider_chunks WHERE span_id = %s", FIRST_CHUNK_SPAN
        )
        yield OpenChunk(id, FIRST_CHUNK_SPAN, batch)


def test_the_search_for_chunks_reads_open_ones_only(ground: Ground, held_chunk: OpenChunk) -> None:
    worker = ground.workers[1]

    taken = ground.explain(
        "take_chunks", worker=worker, name="w", lease=timedelta(minutes=1), max_chunks=8, **IN_SCOPE
    )
    for plan in (taken, ground.explain("left_chunks", **IN_SCOPE)):
        assert not plan.seq_scans - {"workers"}
        assert 0 < plan.rows["provider_chunks"] <= OPEN_CHUNKS
        assert plan.rows["spans"] <= 4 * OPEN_CHUNKS


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("abandoned_chunk", {}),
        ("read_chunk", {}),
        ("release_chunk", {"held": False, "delay": 1.0, "error": None}),
        ("forget_chunk", {}),
        ("end_chunk", dict.fromkeys(("missing", "unknown", "doubled", "unreadable"), 0) | {"error": None}),
        (
            "advance_chunk",
            dict.fromkeys(("file", "provider_batch", "outcome", "searches", "cancelling", "error"))
            | dict.fromkeys(("refused", "resubmissions"))
            | {"before": "submitted", "state": "ended"},
        ),
    ],
)
def test_a_step_of_a_chunk_reads_that_chunk_only(
    ground: Ground, held_chunk: OpenChunk, name: str, more: Mapping[str, Any]
) -> None:
    plan = ground.explain(
        name, **{"worker": ground.workers[0], "chunk": held_chunk.id, "span": held_chunk.span, **more}
    )

    assert not plan.seq_scans
    assert 0 < plan.rows["provider_chunks"] <= 4
    assert plan.rows["spans"] <= HELD / WORKERS + 5


def test_chunks_of_a_batch_are_read_by_their_batch(ground: Ground, held_chunk: OpenChunk) -> None:
    plan = ground.explain("list_chunks", batch=held_chunk.batch, limit=100)

    assert not plan.seq_scans
    assert plan.rows["provider_chunks"] == 1
    assert plan.rows["spans"] == 1


def test_lines_of_a_chunk_are_read_one_by_one(ground: Ground, held_chunk: OpenChunk) -> None:
    numbers = list(range(900, 950))

    ordinals = ground.explain("chunk_ordinals", span=held_chunk.span, worker=ground.workers[0])
    lines = ground.explain("chunk_lines", span=held_chunk.span, ordinals=numbers, bodies=True)

    assert not ordinals.seq_scans | lines.seq_scans
    assert ordinals.rows["spans"] == 1
    assert lines.rows["lines"] == 50
    assert lines.rows["spans"] <= 50


def test_a_new_chunk_reads_its_lines_and_open_chunks_only(ground: Ground, held_chunk: OpenChunk) -> None:
    worker = ground.workers[0]
    ((span,),) = ground.stage.rows(
        "SELECT id FROM batchline.spans WHERE worker_id = %s AND task_id IS NULL LIMIT 1", worker
    )

    plan = ground.explain(
        "form_chunk",
        worker=worker,
        spans=[span],
        chunk=new_id(),
        key="relay",
        max_lines=1000,
        max_bytes=2**20,
        overhead=100,
        max_chunks=100,
        max_tokens=2**30,
        tokens_per_byte=0.25,
        **TARGET,
    )

    assert not plan.seq_scans
    assert plan.rows["provider_chunks"] <= OPEN_CHUNKS
    assert plan.rows["lines"] == 5
    # The span of each open chunk once, and the claimed one four times: to lock it, to read it, to look for
    # others to delete, and to update it. The planner may look at both ends of the index.
    assert plan.rows["spans"] <= OPEN_CHUNKS + 4 + 2


# Clearing away


def test_purging_lines_reads_a_chunk_of_them(ground: Ground) -> None:
    with ground.stage.db.transaction(force_rollback=True):
        # As sessions do: a file with few lines is read by its key too.
        ground.stage.db.execute("SET LOCAL enable_seqscan = off")
        ground.stage.db.execute(
            "INSERT INTO batchline.file_lanes VALUES (1, 0, 'm', '/v1/embeddings', 20000)"
        )
        plan = ground.explain("drop_file_lines", no=1, chunk=100)

    assert "lines" not in plan.seq_scans
    assert plan.rows["lines"] == 2 * 100, "each is found, and deleted"


def test_purging_results_reads_a_chunk_of_them(ground: Ground, busy_batch: UUID) -> None:
    with ground.stage.db.transaction(force_rollback=True):
        ground.stage.db.execute(
            "UPDATE batchline.batches SET purging_at = now() WHERE id = %s", (busy_batch,)
        )
        ground.stage.db.execute(
            """
            UPDATE batchline.results SET lane_id = (SELECT min(id) FROM batchline.lanes WHERE batch_id = %s)
            WHERE lane_id = 1000000
            """,
            (busy_batch,),
        )
        plan = ground.explain("drop_results", batch=busy_batch, chunk=100)

    assert not plan.seq_scans
    assert plan.rows["results"] == 2 * 100, "each is found, and deleted"


def test_dropping_old_events_reads_a_chunk_of_them(ground: Ground) -> None:
    with ground.stage.db.transaction(force_rollback=True):
        ground.stage.db.execute(
            """
            INSERT INTO batchline.outbox (id, batch_id, type, delivered_at)
            SELECT gen_random_uuid(), gen_random_uuid(), 'batch.completed', now() - make_interval(hours => n)
            FROM generate_series(1, 5000) AS n
            """
        )
        ground.stage.db.execute("SET LOCAL enable_seqscan = off")
        plan = ground.explain("drop_old_events", seconds=3600.0, chunk=100)

    assert not plan.seq_scans
    assert plan.rows["outbox"] == 2 * 100, "each is found, and deleted"


# Pages of downloads


def test_a_page_of_results_reads_its_line_numbers_of_each_lane_only(ground: Ground) -> None:
    lanes = [1_000_000 + n for n in range(5)]

    page = ground.explain("page_results", lanes=lanes, after=100, until=150, room=131_072)
    following = ground.explain("next_result", lanes=lanes, after=150)

    assert not page.seq_scans | following.seq_scans
    assert page.rows["results"] == 5 * 50
    assert following.rows["results"] == 5


def test_a_page_of_requests_reads_its_line_numbers_only(ground: Ground) -> None:
    lanes = {"file_no": 1, "lane_nos": [0, 7], "cursors": [100, 0]}

    page = ground.explain(
        "page_requests", **lanes, urls=["/v1/embeddings"] * 2, after=100, until=150, room=131_072
    )
    following = ground.explain("next_request", **lanes)

    assert not page.seq_scans | following.seq_scans
    # Before PostgreSQL 18 rows are whole numbers per lane, so they are rounded.
    assert page.rows["lines"] <= 2 + 50
    assert following.rows["lines"] <= 2


# Hooks and repair


@pytest.mark.parametrize("hook", ["hook-1", "hook-3", "no such hook"])
def test_taking_a_delivery_looks_at_the_first_that_is_due(ground: Ground, hook: str) -> None:
    plan = ground.explain("take_hook_delivery", hooks=[hook], batch=None, lease=60.0)

    assert not plan.seq_scans
    assert plan.rows["hook_deliveries"] <= 3


def test_a_poll_looks_at_the_first_delivery_to_each_hook(ground: Ground) -> None:
    hooks = ["hook-1", "hook-3", "no such hook"]
    plan = ground.explain("poll", **Scope().params(), worker=new_id(), **{**POLLED, "hooks": hooks})

    assert not plan.seq_scans - {"workers", "maintenance_tasks", "outbox", "webhooks"}
    assert plan.rows["hook_deliveries"] <= len(hooks)


def test_the_search_for_unfrozen_batches_reads_running_ones_once_and_spans_of_none(ground: Ground) -> None:
    running = ground.stage.value("SELECT count(*) FROM batchline.batches WHERE finalizing_at IS NULL")
    with ground.stage.db.transaction(force_rollback=True):
        ground.stage.db.execute(
            "INSERT INTO batchline.batches (id, tenant, file_id, completion_window, settings, total,"
            " expires_at, finalizing_at, completed_at) SELECT gen_random_uuid(), 't0', gen_random_uuid(),"
            " '24h', '{}', 1, now(), now(), now() FROM generate_series(1, 50000)"
        )
        plan = ground.explain("unfrozen", limit=100)

    assert not plan.seq_scans - {"counters"}
    assert plan.rows["batches"] <= running
    assert plan.rows["spans"] == 0


# Monitoring


def test_the_demand_reads_open_lanes_and_free_spans_once_and_no_held_ones(ground: Ground) -> None:
    """With 50,000 lanes of ended batches and 100,000 tasks that providers work on, which it does not read."""
    lanes = ground.stage.value("SELECT count(*) FROM batchline.lanes WHERE open AND NOT drained")
    free = ground.stage.value("SELECT count(*) FROM batchline.spans WHERE worker_id IS NULL")
    with ground.stage.db.transaction(force_rollback=True):
        ground.stage.db.execute(PARKED_SQL, (datetime.now(UTC), PARKED))
        ground.stage.db.execute(
            "INSERT INTO batchline.lanes (batch_id, tenant, key, deadline, file_no, lane_no, model, url,"
            " total, next, open, drained) SELECT batch_id, tenant, key, deadline, file_no, g, model, url, 1,"
            " 1, false, true FROM (SELECT * FROM batchline.lanes LIMIT 1) AS n"
            " CROSS JOIN generate_series(1, 50000) AS g"
        )
        plan = ground.explain(
            "demand", keys=["k0"], upstreams=["one"], other="rest", excluded=["run:%"], limit=1000
        )

    assert not plan.seq_scans - {"workers"}
    assert plan.rows["lanes"] <= lanes + IN_FLIGHT_LANES
    assert plan.rows["spans"] <= free + 2
    assert plan.rows["batches"] <= lanes
    assert plan.rows["results"] == 0


def test_open_batches_are_counted_without_a_look_at_ended_ones(ground: Ground) -> None:
    running = ground.stage.value("SELECT count(*) FROM batchline.batches WHERE finalizing_at IS NULL")
    with ground.stage.db.transaction(force_rollback=True):
        ground.stage.db.execute(
            "INSERT INTO batchline.batches (id, tenant, file_id, completion_window, settings, total,"
            " expires_at, finalizing_at, completed_at) SELECT gen_random_uuid(), 't0', gen_random_uuid(),"
            " '24h', '{}', 1, now(), now(), now() FROM generate_series(1, 50000)"
        )
        plan = ground.explain("open_batches")

    assert not plan.seq_scans
    assert plan.rows["batches"] <= running


@pytest.mark.parametrize("name", ["maintenance_delays", "row_counts", "oldest_snapshot", "connections"])
def test_what_else_metrics_read_is_no_large_table(ground: Ground, name: str) -> None:
    plan = ground.explain(name)

    assert not plan.seq_scans - {"maintenance_tasks", "bulk_actions", "tenants", "webhooks"}
    assert not {"batches", "lanes", "spans", "results", "lines"} & {
        table for table, n in plan.rows.items() if n
    }


# Status


def test_the_status_of_a_batch_reads_its_cursors_and_its_free_spans_and_nothing_else(
    ground: Ground, busy_batch: UUID
) -> None:
    free = ground.stage.value(
        "SELECT count(*) FROM batchline.spans WHERE batch_id = %s AND worker_id IS NULL", busy_batch
    )
    held = ground.stage.value(
        "SELECT count(*) FROM batchline.spans WHERE batch_id = %s AND worker_id IS NOT NULL", busy_batch
    )
    assert free
    assert held
    plan = ground.explain("get_batch", batch=busy_batch)
    assert not plan.seq_scans
    assert plan.rows["batches"] == plan.rows["lanes"] == 1
    assert plan.rows["spans"] <= free, "not those that are held, and of no other batch"


def test_the_status_of_a_batch_with_many_retries_reads_each_of_them_once(ground: Ground) -> None:
    """100,000 free spans is a batch of which as many lines failed one by one. Such a read takes some tens of
    milliseconds (docs/reference/states.md)."""
    stage, many = ground.stage, 100_000
    with stage.db.transaction(force_rollback=True):
        batch = stage.batch(many)
        stage.db.execute(
            """
            INSERT INTO batchline.spans (lane_id, batch_id, outstanding, available_at, attempt)
            SELECT %s, %s, int4multirange(int4range(n, n + 1)), now() + interval '1 hour', 2
            FROM generate_series(0, %s) AS n
            """,
            (batch.lanes[0], batch.id, many - 1),
        )
        stage.db.execute("UPDATE batchline.lanes SET next = total, drained = true WHERE id = %s", batch.lanes)
        plan = ground.explain("get_batch", batch=batch.id)
        assert not plan.seq_scans
        assert plan.rows["spans"] == many
        assert stage.counts(batch).retrying == many


@pytest.mark.parametrize("parked", ["waiting"], indirect=True)
def test_the_status_of_a_batch_reads_no_task_of_100_000(ground: Ground, parked: int) -> None:
    batch = ground.stage.value("SELECT batch_id FROM batchline.spans WHERE task_id IS NOT NULL LIMIT 1")
    waiting = ground.stage.value(
        "SELECT count(*) FROM batchline.spans WHERE batch_id = %s AND worker_id IS NULL AND task_id IS NULL",
        batch,
    )
    plan = ground.explain("get_batch", batch=batch)

    assert not plan.seq_scans
    assert plan.rows["spans"] <= waiting


def test_a_page_of_batches_reads_the_batches_of_the_page(ground: Ground) -> None:
    plan = ground.explain(
        "list_batches", tenant="t1", after_at="infinity", after_id=UUID(int=2**128 - 1), limit=20
    )
    assert not plan.seq_scans
    assert plan.rows["batches"] <= 21
    assert plan.rows["lanes"] <= 20


def test_what_a_model_uses_is_learned_from_the_batches_of_its_tenant_only(ground: Ground) -> None:
    plan = ground.explain("learned_usage", tenant="t7", models=["model"])

    assert not plan.seq_scans
    assert plan.rows["batches"] <= 100
    assert plan.rows["lanes"] <= 100


def test_a_step_reads_the_spans_and_lanes_of_its_batch_only(ground: Ground, busy_batch: UUID) -> None:
    assert not ground.explain("begin_step", batch=busy_batch).seq_scans
    plan = ground.explain("due_steps", limit=100)
    assert not plan.seq_scans
    assert plan.rows.get("batches", 0) == 0


def test_an_item_is_found_by_reading_the_lines_of_its_batch(ground: Ground, busy_batch: UUID) -> None:
    plan = ground.explain("item_attempts", batch=busy_batch, custom_id="line-10")
    assert not plan.seq_scans
    assert plan.rows["lines"] <= 20_000
    assert plan.rows["results"] <= 1
    assert plan.rows["spans"] <= 200


def test_an_erasure_looks_at_the_batches_of_its_tenant_only(ground: Ground) -> None:
    plan = ground.explain("erase_batches", tenant="t7", chunk=100)
    assert not plan.seq_scans - {"workers"}
    assert plan.rows["batches"] <= 300
    remains = ground.explain("tenant_remains", tenant="t7")
    assert not remains.seq_scans - {"api_keys", "api_windows"}
    assert remains.rows["batches"] <= 300


def test_a_usage_report_reads_the_days_of_its_period_only(ground: Ground) -> None:
    ground.stage.db.execute(
        """
        INSERT INTO batchline.tenant_usage (
            tenant, day, stored, added, batches, lines, failed, reused, input_tokens, cached_tokens,
            output_tokens, reasoning_tokens, cost
        )
        SELECT 't' || n % 100, date '2020-01-01' + n / 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
        FROM generate_series(0, 99999) AS n
        """
    )
    ground.stage.db.execute("ANALYZE batchline.tenant_usage")
    period = {"since": date(2022, 1, 1), "until": date(2022, 2, 1), "by": "total"}
    first = {"after_period": None, "after_tenant": None, "limit": 1000}
    one = ground.explain("usage_report", tenant="t7", **period, **first)
    assert not one.seq_scans
    assert one.rows["tenant_usage"] <= 31
    all_of_them = ground.explain("usage_report", tenant=None, **period, **first)
    assert not all_of_them.seq_scans
    assert all_of_them.rows["tenant_usage"] <= 3100
