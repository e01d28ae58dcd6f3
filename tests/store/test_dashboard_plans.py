"""What the dashboard reads of a database with many batches: a few index entries for a page, and no table from
end to end. Measured in rows, as PostgreSQL counts them, never in time."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from batchline.store.listing import _backwards
from batchline.store.statements import statement
from tests.support import scenes

ENDED, OPEN, OTHERS, LINES = 20_000, 1_000, 5_000, 20_000
LARGE = UUID("00000000-0000-7000-9000-000000000001")

BATCHES_SQL = """
INSERT INTO batchline.batches (
    id, tenant, file_id, endpoint, completion_window, settings, model, total, completed, failed, created_at,
    in_progress_at, expires_at, finalizing_at, completed_at
)
SELECT
    ('00000000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid,
    CASE WHEN n > %(open)s + %(ended)s THEN 'other' ELSE 'acme' END,
    gen_random_uuid(), '/v1/chat/completions', '24h', '{}', 'model-' || n %% 7, 100, 0, n %% 5,
    now() - n * interval '1 minute', now() - n * interval '1 minute',
    now() + interval '1 day' - n * interval '1 second',
    CASE WHEN n > %(open)s THEN now() - n * interval '50 seconds' END,
    CASE WHEN n > %(open)s THEN now() - n * interval '50 seconds' END
FROM generate_series(1, %(open)s + %(ended)s + %(others)s) AS n
"""
LARGE_SQL = """
INSERT INTO batchline.lanes (batch_id, tenant, key, deadline, file_no, lane_no, model, url, total, next)
VALUES (%(large)s, 'acme', 'model', now(), 1, 0, 'model', '/v1/chat/completions', %(lines)s, %(lines)s / 2);
INSERT INTO batchline.lines
SELECT 1, 0, n, n + 1, 'line-' || n, '{}' FROM generate_series(0, %(lines)s - 1) AS n;
INSERT INTO batchline.results (
    lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens, output_tokens, finished_at, output
)
SELECT
    l.id, n + 1, n, (CASE WHEN n %% 10 = 0 THEN 'failed' ELSE 'completed' END)::batchline.outcome, 200, 1,
    1, 1, now(), '{}'
FROM batchline.lanes AS l
CROSS JOIN generate_series(0, %(lines)s / 2 - 100) AS n;
INSERT INTO batchline.spans (lane_id, batch_id, outstanding, available_at, attempt)
SELECT id, batch_id, int4multirange(int4range(%(lines)s / 2 - 99, %(lines)s / 2)), now(),
1 FROM batchline.lanes;
INSERT INTO batchline.progress
SELECT id, now() - m * interval '10 minutes', created_at, tenant, 60, 9, 1, 9, 9, 9, 1, 9, 9, 5
FROM batchline.batches
CROSS JOIN generate_series(0, 9) AS m
WHERE ended_at IS NULL;
INSERT INTO batchline.audit_log (tenant, actor, action, detail)
SELECT CASE WHEN n %% 2 = 0 THEN 'acme' ELSE 'other' END, 'anna', 'key.created',
'{}' FROM generate_series(1, 20000) AS n;
INSERT INTO batchline.api_keys (id, name, tenant, role, hash, hint)
SELECT gen_random_uuid(), 'key', CASE WHEN n %% 2 = 0 THEN 'acme' ELSE 'other' END, 'user', int8send(n), 'bl-'
FROM generate_series(1, 20000) AS n;
INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'acme', 'batch', 'in.jsonl', 1, 1
FROM generate_series(1, 1000) AS n;
INSERT INTO batchline.file_lanes
SELECT f.no, n, 'model-' || n, '/v1/chat/completions', 1
FROM batchline.files AS f
CROSS JOIN generate_series(0, 199) AS n;
INSERT INTO batchline.bulk_actions (id, tenant, actor, role, alone, action, filter, matching)
SELECT
    gen_random_uuid(), CASE WHEN n %% 2 = 0 THEN 'acme' ELSE 'other' END, 'anna', 'user', false, 'pause',
    '{}', 1
FROM generate_series(1, 20000) AS n
"""
COUNTS_SQL = """
SELECT relname, seq_scan, seq_tup_read + coalesce(idx_tup_fetch, 0)
FROM pg_stat_xact_user_tables
WHERE schemaname = 'batchline' AND seq_tup_read + coalesce(idx_tup_fetch, 0) > 0
"""
USUAL: dict[str, Any] = {
    "tenant": "acme",
    "viewer": None,
    "kind": None,
    "statuses": None,
    "since": "-infinity",
    "before": "infinity",
    "model": None,
    "words": None,
    "after": "infinity",
    "after_id": UUID(int=2**128 - 1),
    "chunk": 51,
    "limit": 51,
    "batch": LARGE,
}
FIRST = {"after": "-infinity", "after_id": UUID(int=0)}
OF_LANE = {"after_lane": 0, "after": -1}


@pytest.fixture(scope="module")
def loaded(server_url: str, template: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    sizes = {"ended": ENDED, "open": OPEN, "others": OTHERS, "lines": LINES, "large": LARGE}
    with scenes.database(server_url, template) as url, scenes.connect(url) as connection:
        for command in (*BATCHES_SQL.split(";\n"), *LARGE_SQL.split(";\n"), "VACUUM ANALYZE"):
            connection.execute(command.encode(), None if command.startswith("VACUUM") else sizes)
        yield connection


def rows_read(
    connection: psycopg.Connection[tuple[Any, ...]], text: str, params: dict[str, Any]
) -> dict[str, int]:
    """How many rows of each table a statement reads. Fails if it reads a large table from end to end."""
    used = {name: value for name, value in params.items() if f"%({name})s" in text}
    with connection.transaction(force_rollback=True):
        before = {table: (scans, rows) for table, scans, rows in connection.execute(COUNTS_SQL)}
        connection.execute(text.encode(), used).fetchall()
        after = {table: (scans, rows) for table, scans, rows in connection.execute(COUNTS_SQL)}
    found = {}
    for table, (scans, rows) in after.items():
        scans_before, rows_before = before.get(table, (0, 0))
        assert scans == scans_before, f"{table} was scanned"
        found[table] = rows - rows_before
    return found


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("batches_by_creation", {}),
        ("batches_by_status", {"statuses": ["completed"]}),
        ("batches_by_status", {"statuses": ["cancelled"]}),
        ("batches_by_deadline", {}),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_a_page_of_batches_reads_a_page_of_rows(
    loaded: psycopg.Connection[tuple[Any, ...]], name: str, more: dict[str, Any], backwards: bool
) -> None:
    text = _backwards(name).text if backwards else statement(name).text
    start = FIRST if backwards else {}
    assert rows_read(loaded, text, USUAL | start | more).get("batches", 0) <= 60


def test_the_order_by_failures_reads_a_page_and_the_batches_that_run(
    loaded: psycopg.Connection[tuple[Any, ...]],
) -> None:
    text = statement("batches_by_failed").text
    assert rows_read(loaded, text, USUAL | {"after": 2**31 - 1})["batches"] <= 60 + OPEN


def test_a_search_reads_no_more_than_its_chunk(loaded: psycopg.Connection[tuple[Any, ...]]) -> None:
    wanted = USUAL | {"words": "nowhere", "chunk": 500}
    for name, more in (
        ("batches_by_creation", {}),
        ("batches_by_status", {"statuses": ["completed"]}),
        ("batches_by_deadline", {}),
        ("search_audit", {"after": 2**62, "actor": None, "action": None}),
    ):
        found = rows_read(loaded, statement(name).text, wanted | more)
        assert sum(found.values()) <= 1_100, name


def test_counting_stops_at_its_limit(loaded: psycopg.Connection[tuple[Any, ...]]) -> None:
    for statuses in (None, ["completed"], ["completed", "in_progress"]):
        params = USUAL | {"statuses": statuses, "limit": 500}
        # An index-only scan fetches no rows at all.
        assert rows_read(loaded, statement("count_batches").text, params).get("batches", 0) <= 1_000


@pytest.mark.parametrize(
    ("name", "more", "rows"),
    [
        ("list_items", {"state": None, "fresh": False}, 200),
        ("list_items", {"state": "pending", "fresh": True}, 200),
        ("list_items", {"state": "completed", "fresh": False, "chunk": 200}, 500),
        ("list_failed_items", {"cause": None}, 200),
        ("list_failed_items", {"cause": "unknown", "chunk": 200}, 500),
        ("list_span_items", {"in_flight": False}, 200),
        ("find_line", {"line": 12_345, "max_bytes": 100}, 60),
    ],
)
def test_a_page_of_items_reads_a_page_of_lines_and_results(
    loaded: psycopg.Connection[tuple[Any, ...]], name: str, more: dict[str, Any], rows: int
) -> None:
    found = rows_read(loaded, statement(name).text, USUAL | OF_LANE | more)
    assert found.get("lines", 0) + found.get("results", 0) <= rows


def test_the_overview_reads_open_batches_and_notes_of_the_last_hour(
    loaded: psycopg.Connection[tuple[Any, ...]],
) -> None:
    assert rows_read(loaded, statement("open_counts").text, USUAL | {"limit": 100})["batches"] <= OPEN + 200
    notes = rows_read(loaded, statement("throughput").text, USUAL | {"minutes": 60, "limit": 50_000})
    assert notes["progress"] <= 7 * OPEN
    few = rows_read(loaded, statement("throughput").text, USUAL | {"minutes": 60, "limit": 100})
    assert few["progress"] <= 200
    assert rows_read(loaded, statement("batch_progress").text, USUAL | {"limit": 1000})["progress"] <= 20


def test_summaries_read_by_key(loaded: psycopg.Connection[tuple[Any, ...]]) -> None:
    wanted = [UUID(f"00000000-0000-7000-9000-{number:012x}") for number in range(1, 101)]
    found = rows_read(loaded, statement("batch_summaries").text, USUAL | {"batches": wanted})
    # Once for its counts, and once for whether its lines are sent in another order.
    assert found["batches"] <= 210
    assert sum(found.values()) <= 700


def test_a_page_of_keys_or_actions_reads_a_page_of_rows(loaded: psycopg.Connection[tuple[Any, ...]]) -> None:
    for name, table in (("list_tenant_keys", "api_keys"), ("list_actions", "bulk_actions")):
        params = USUAL | {"after": None, "actor": None}
        assert rows_read(loaded, statement(name).text, params)[table] <= 60, name


def test_the_models_of_a_page_of_files_are_read_by_key_up_to_a_limit(
    loaded: psycopg.Connection[tuple[Any, ...]],
) -> None:
    wanted = [UUID(f"00000000-0000-7000-8000-{number:012x}") for number in range(1, 51)]
    found = rows_read(loaded, statement("file_contents").text, {"files": wanted, "lanes": 20})
    assert found["files"] <= 60
    assert found["file_lanes"] <= 50 * 21


def test_findings_read_the_batches_that_have_not_ended(
    loaded: psycopg.Connection[tuple[Any, ...]],
) -> None:
    assert rows_read(loaded, statement("stuck_batches").text, USUAL)["batches"] <= OPEN + 200
