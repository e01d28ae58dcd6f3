"""Read the database and the object store directly, without Batchline."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL, Composed

from chaos.checker import ChaosFinding, CheckedBatch, FindingKind

_BATCHES = """
SELECT
    b.*,
    o.object_key AS output_key,
    e.object_key AS error_key,
    CASE
        WHEN b.cancelled_at IS NOT NULL THEN 'cancelled'
        WHEN b.expired_at IS NOT NULL THEN 'expired'
        WHEN b.failed_at IS NOT NULL THEN 'failed'
        WHEN b.completed_at IS NOT NULL THEN 'completed'
        ELSE 'not at its end'
    END AS status
FROM batchline.batches AS b
LEFT JOIN batchline.files AS o ON o.id = b.output_file_id
LEFT JOIN batchline.files AS e ON e.id = b.error_file_id
WHERE NOT b.id = ANY (%s)
"""

# Each query must return 0 once everything has ended.
_LEFT_OVER = {
    "spans": "SELECT count(*) FROM batchline.spans",
    "counters": "SELECT count(*) FROM batchline.counters",
    "batches that have not ended": "SELECT count(*) FROM batchline.batches WHERE ended_at IS NULL",
    "leases that hold spans": """
        SELECT count(*) FROM batchline.workers AS w WHERE EXISTS (SELECT FROM batchline.spans AS s
            WHERE s.worker_id = w.id)
    """,
    "events that were not delivered": "SELECT count(*) FROM batchline.outbox WHERE delivered_at IS NULL",
    "open lanes": """
        SELECT count(*) FROM batchline.lanes AS n JOIN batchline.batches AS b ON b.id = n.batch_id
        WHERE b.ended_at IS NOT NULL AND n.open AND NOT n.drained
    """,
}


def unfinished(url: str) -> int:
    """Count batches that have not ended, and events that were not delivered."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM batchline.batches WHERE ended_at IS NULL)"
            " + (SELECT count(*) FROM batchline.outbox WHERE delivered_at IS NULL)"
        ).fetchone()
    assert row is not None
    return int(row[0])


def batches(url: str, objects: Path, known: list[Any]) -> Iterator[CheckedBatch]:
    """Read all batches except the known ones, with the contents of their files."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        for row in connection.execute(_BATCHES, (known,)):
            yield CheckedBatch(
                id=row["id"],
                status=row["status"],
                total=row["total"],
                completed=row["completed"],
                failed=row["failed"],
                input_tokens=row["input_tokens"],
                output_tokens=row["output_tokens"],
                output=_content(objects, row["output_key"]),
                errors=_content(objects, row["error_key"]),
            )


def left_over(url: str) -> list[ChaosFinding]:
    findings = []
    with psycopg.connect(url) as connection:
        for what, query in _LEFT_OVER.items():
            row = connection.execute(Composed([SQL(query)])).fetchone()
            assert row is not None
            if row[0]:
                findings.append(ChaosFinding(FindingKind.WRONG, "left over", f"{row[0]} {what}"))
    return findings


def unrecorded_objects(url: str, objects: Path) -> list[ChaosFinding]:
    """Find objects without a row in the database, and rows without an object."""
    with psycopg.connect(url) as connection:
        recorded = {
            key
            for (key,) in connection.execute(
                "SELECT object_key FROM batchline.files WHERE object_key IS NOT NULL"
            )
        }
    found = {path.relative_to(objects).as_posix() for path in objects.rglob("*") if path.is_file()}
    unrecorded = sorted(found - recorded)
    missing = sorted(recorded - found)
    return [
        *(
            ChaosFinding(FindingKind.WRONG, "left over", f"object {key} is not recorded")
            for key in unrecorded
        ),
        *(
            ChaosFinding(FindingKind.LOST, "object store", f"object {key} is recorded, but missing")
            for key in missing
        ),
    ]


def _content(objects: Path, key: str | None) -> bytes:
    return b"" if key is None else (objects / key).read_bytes()
