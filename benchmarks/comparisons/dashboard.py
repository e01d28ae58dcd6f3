"""Response time of the dashboard's calls, with 10,000 open and 100,000 ended batches of one tenant.

Together they have 10 million items, in their counters; one batch of 200,000 lines has its lines and results,
too, and 2,000 spans are in flight. Each open batch has notes of its rate. `batchline serve` runs without a
worker. A client with one connection and a key makes each call in turn, and after each /healthz, which does no
work.
"""

from time import perf_counter
from uuid import UUID

from psycopg import sql

from batchline.model import DEFAULT_TENANT
from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, below
from benchmarks.server import execute
from benchmarks.serving import Serving, serving, whole

_PREFIX = "/api/v1/dashboard"
_BIG = UUID("00000000-0000-7000-9000-000000000001")
# (what, path). The first page of each list, a later one, and searches that find little.
_CALLS = (
    ("overview", "overview"),
    ("batches", "batches"),
    ("batches by status", "batches?status=in_progress,paused"),
    ("batches by deadline", "batches?sort=deadline"),
    ("batches by failures", "batches?sort=failed"),
    ("batches of a model", "batches?model=model-3"),
    ("batches by a name that is rare", "batches?q=prompts-2999"),
    ("one batch", f"batches/{_BIG.hex}"),
    ("items", f"batches/{_BIG.hex}/items"),
    ("items that have failed", f"batches/{_BIG.hex}/items?state=failed"),
    ("items by custom_id", f"batches/{_BIG.hex}/items?q=line-19999"),
    ("one item", f"batches/{_BIG.hex}/items/123456"),
)

_BATCHES = """
INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count, created_at)
SELECT
    ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, %(tenant)s, 'batch',
    'prompts-' || n || '.jsonl',
    1000, 100, now() - n * interval '1 minute'
FROM generate_series(1, %(open)s + %(ended)s) AS n;
INSERT INTO batchline.batches (
    id, tenant, file_id, endpoint, completion_window, settings, model, metadata, total, completed, failed,
    created_at,
    in_progress_at, expires_at, finalizing_at, completed_at
)
SELECT
    ('00000000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, %(tenant)s,
    ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, '/v1/chat/completions', '24h', '{}',
    'model-' || n %% 7, jsonb_build_object('team', 'team-' || n %% 50), 91,
    CASE WHEN n > %(open)s THEN 91 - n %% 5 ELSE 0 END,
    CASE WHEN n > %(open)s THEN n %% 5 ELSE 0 END, now() - n * interval '1 minute',
    now() - n * interval '1 minute',
    now() + interval '1 day' - n * interval '5 seconds',
    CASE WHEN n > %(open)s THEN now() - n * interval '50 seconds' END,
    CASE WHEN n > %(open)s THEN now() - n * interval '50 seconds' END
FROM generate_series(1, %(open)s + %(ended)s) AS n;
INSERT INTO batchline.lanes (batch_id, tenant, key, deadline, file_no, lane_no, model, url, total, next,
open, drained)
SELECT
    b.id, b.tenant, b.model, b.expires_at, f.no, 0, b.model, b.endpoint, b.total,
    CASE WHEN b.ended_at IS NULL THEN 40 ELSE b.total END, b.ended_at IS NULL, b.ended_at IS NOT NULL
FROM batchline.batches AS b
JOIN batchline.files AS f ON f.id = b.file_id;
INSERT INTO batchline.counters (
    batch_id, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost
)
SELECT id, 30, (random() * 5)::integer, 1000, 0, 1000, 0, 0 FROM batchline.batches WHERE ended_at IS NULL;
INSERT INTO batchline.progress
SELECT id, now() - m * interval '13 minutes', created_at, tenant, 60, 30, 3, 2000, 5, 10, 1, 200, 1, 5
FROM batchline.batches
CROSS JOIN generate_series(0, 1) AS m
WHERE ended_at IS NULL
"""
_LARGE = """
UPDATE batchline.batches SET total = %(lines)s WHERE id = %(batch)s;
UPDATE batchline.lanes SET total = %(lines)s, next = %(lines)s * 3 / 4 WHERE batch_id = %(batch)s;
UPDATE batchline.counters SET completed = %(lines)s / 2 WHERE batch_id = %(batch)s;
INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
SELECT n.file_no, 0, o, o + 1, 'line-' || o, '{"model":"m"}'
FROM batchline.lanes AS n
CROSS JOIN generate_series(0, %(lines)s - 1) AS o
WHERE n.batch_id = %(batch)s;
INSERT INTO batchline.results (
    lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens, output_tokens, finished_at,
    output,
    upstream_seconds, held_seconds, settling_seconds
)
SELECT
    n.id, o + 1, o, (CASE WHEN o %% 50 = 0 THEN 'failed' ELSE 'completed' END)::batchline.outcome, 200, 1,
    1, 1, now(), '{}',
    0.5, 0.6, 0.01
FROM batchline.lanes AS n
CROSS JOIN generate_series(0, %(lines)s * 3 / 4 - 1) AS o
WHERE n.batch_id = %(batch)s;
INSERT INTO batchline.workers (id, name, lease_until)
SELECT gen_random_uuid(), 'host:' || n || '@machine/1', now() + interval '1 day' FROM generate_series(1,
20) AS n;
INSERT INTO batchline.spans (lane_id, batch_id, outstanding, worker_id, available_at, attempt)
SELECT n.id, n.batch_id, int4multirange(int4range(35, 40)), w.id, now(), 1
FROM (
    SELECT id, batch_id, row_number() OVER (ORDER BY id) AS nth
    FROM batchline.lanes WHERE NOT drained AND batch_id <> %(batch)s LIMIT 2000
) AS n
JOIN (SELECT id, row_number() OVER () - 1 AS nth FROM batchline.workers) AS w ON w.nth = n.nth %% 20;
VACUUM ANALYZE
"""


async def compare(bench: Bench) -> list[Figure]:
    sizes = {"open": bench.size(10_000, quick=100), "ended": bench.size(100_000, quick=1_000)}
    lines = bench.size(200_000, quick=130_000)
    with bench.server.database() as url:
        _fill(url, _BATCHES, {"tenant": DEFAULT_TENANT, **sizes})
        _fill(url, _LARGE, {"batch": _BIG, "lines": lines})
        bench.server.settle_down()
        options = ("--no-worker", "--upstream", "http://127.0.0.1:9/v1")
        with serving(url, bench.scratch / "dashboard", *options) as server:
            calls, floor = _measure(server, bench.size(30, quick=2))
    slowest = max(calls, key=lambda series: series.percentile(95))
    return [
        Figure(
            "the slowest of the dashboard's calls, 95th percentile",
            slowest.percentile(95),
            "ms",
            below(100),
            [slowest, floor],
            note=f"{slowest.name}, with {sizes['open']:,} open and {sizes['ended']:,} ended batches",
        ),
        *(Figure(f"{each.name}, median", each.median, "ms", None, [each]) for each in calls),
    ]


def _fill(url: str, statements: str, params: dict[str, object]) -> None:
    for statement in statements.split(";\n"):
        execute(url, sql.SQL(statement), params)


def _measure(server: Serving, rounds: int) -> tuple[list[Series], Series]:
    connection = server.connect()
    found: dict[str, list[float]] = {name: [] for name, _ in _CALLS}
    floor: list[float] = []
    # The first round prepares the statements.
    for nth in range(rounds + 1):
        for name, path in _CALLS:
            for values, target in ((found[name], f"{_PREFIX}/{path}"), (floor, "/healthz")):
                begun = perf_counter()
                connection.request("GET", target, headers=server.headers)
                whole(connection.getresponse())
                if nth:
                    values.append(1000 * (perf_counter() - begun))
    connection.close()
    return [Series(name, "ms", values) for name, values in found.items()], Series("GET /healthz", "ms", floor)
