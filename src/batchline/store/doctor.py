"""Check a live database against the design: the invariant of every lane, and all that follows from it.

The database does all the counting and returns one row per problem. Each check is one statement in a
transaction of its own, so it sees one moment, takes no row locks, and may run while workers do. A snapshot
lasts as long as its check: seconds for a million results.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from batchline.model import ids
from batchline.store.session import Row, Session, StoreConnection, run
from batchline.store.statements import statement

# Cheap ones first. Each returns one row per finding: (name of the check, file, batch, lane, message).
_CHECKS = (
    "doctor_lanes",
    "doctor_spans",
    "doctor_chunks",
    "doctor_steps",
    "doctor_batches",
    "doctor_operations",
    "doctor_tenants",
    "doctor_results",
    "doctor_attempts",
    "doctor_causes",
    "doctor_files",
)
_NOTES = "doctor_notes"
# Findings per statement. A hundred are enough to see what is wrong.
_MAXIMUM = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation: which check found it, where, and what is wrong."""

    check: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """Numbers of rows checked, and the findings. Notes are worth knowing but are not violations."""

    batches: int
    lanes: int
    spans: int
    results: int
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        return not self.findings


async def examine(
    session: Session,
    *,
    batch_id: UUID | None = None,
    object_exists: Callable[[str], Awaitable[bool]] | None = None,
) -> Report:
    """Examine everything, or one batch with its file.

    With `object_exists`, which says whether the object store has a key, also check that files have their
    content.
    """
    params = {"batch": batch_id, "max_findings": _MAXIMUM}
    async with session.open_ended() as connection:
        ((batches, lanes, spans, results),) = await _alone(connection, "doctor_counts", params)
        findings = [finding for name in _CHECKS for finding in await _look(connection, name, params)]
        notes = await _look(connection, _NOTES, params)
    if object_exists is not None:
        findings += await _missing_objects(session, batch_id, object_exists)
    return Report(batches, lanes, spans, results, tuple(findings), tuple(notes))


async def _look(connection: StoreConnection, name: str, params: dict[str, Any]) -> list[Finding]:
    rows = await _alone(connection, name, params)
    findings = [Finding(check, _where(*location), message) for check, *location, message in rows]
    if len(findings) == _MAXIMUM:
        findings.append(Finding(findings[-1].check, "everywhere", f"only the first {_MAXIMUM} are shown"))
    return findings


async def _alone(connection: StoreConnection, name: str, params: dict[str, Any]) -> list[Row]:
    """Run one check in one transaction."""
    async with connection.transaction():
        await connection.execute("SET TRANSACTION READ ONLY")
        # Plan for these parameters: the check of one batch must not scan all batches.
        await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        if params["batch"] is None:
            # Everything is read once anyway. On tables that were never analyzed, the planner underestimates
            # nested loops, which would read a table once per row.
            await connection.execute("SET LOCAL enable_nestloop = off")
            await connection.execute("SET LOCAL enable_seqscan = on")
        return await run(connection, statement(name), params)


async def _missing_objects(
    session: Session, batch_id: UUID | None, object_exists: Callable[[str], Awaitable[bool]]
) -> list[Finding]:
    """Find files whose content is not in the object store. Works page by page, with no transaction open."""
    findings: list[Finding] = []
    after: UUID | None = None
    while len(findings) < _MAXIMUM:
        params = {"batch": batch_id, "after": after, "max_findings": _MAXIMUM}
        page = await session.rows(statement("doctor_objects"), params)
        findings += [
            Finding("object", ids.show(ids.FILE, file_id), f"the object store has no {key}")
            for file_id, key in page
            if not await object_exists(key)
        ]
        if len(page) < _MAXIMUM:
            break
        after = page[-1][0]
    return findings


def _where(file_id: UUID | None, batch_id: UUID | None, lane_id: int | None) -> str:
    parts = (
        file_id and ids.show(ids.FILE, file_id),
        batch_id and ids.show(ids.BATCH, batch_id),
        None if lane_id is None else f"lane {lane_id}",
    )
    return ", ".join(part for part in parts if part) or "everywhere"
