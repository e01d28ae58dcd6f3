"""Checks a live database against the design: the one invariant of every lane, and all that follows from it.

All counting is done by the database in streams; what comes here is one row for each thing that is wrong.
The checks see one moment (REPEATABLE READ), take no locks, and may run while workers do. That moment is kept
for as long as the examination takes, and vacuum cannot clean up behind it: seconds for a million results.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from batchline.model import ids
from batchline.store.session import Connection, Session, run
from batchline.store.statements import statement

# Cheap ones first. Each gives (name of the check, file, batch, lane, message) for each finding.
_CHECKS = (
    "doctor_lanes",
    "doctor_spans",
    "doctor_batches",
    "doctor_operations",
    "doctor_results",
    "doctor_attempts",
    "doctor_files",
)
_NOTES = "doctor_notes"
# A statement shows no more findings than this: who has a hundred needs no more to know.
_MAXIMUM = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be: which check found it, where, and what."""

    check: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """What was examined and what was found. Notes are worth knowing and not wrong."""

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

    With `object_exists`, which tells whether the object store has a key, it looks for files' contents too.
    """
    params = {"batch": batch_id, "max_findings": _MAXIMUM}
    async with session.open_ended() as connection, connection.transaction():
        # Plans are made for these parameters: one batch must not cost a scan of all.
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        if batch_id is None:
            # Everything is read once anyway. On tables that were never analyzed a nested loop, which looks
            # cheap to the planner then, would read them once for each row.
            await connection.execute("SET LOCAL enable_nestloop = off")
            await connection.execute("SET LOCAL enable_seqscan = on")
        ((batches, lanes, spans, results),) = await run(connection, statement("doctor_counts"), params)
        findings = [finding for name in _CHECKS for finding in await _look(connection, name, params)]
        notes = await _look(connection, _NOTES, params)
    if object_exists is not None:
        findings += await _missing_objects(session, batch_id, object_exists)
    return Report(batches, lanes, spans, results, tuple(findings), tuple(notes))


async def _look(connection: Connection, name: str, params: dict[str, Any]) -> list[Finding]:
    rows = await run(connection, statement(name), params)
    findings = [Finding(check, _where(*location), message) for check, *location, message in rows]
    if len(findings) == _MAXIMUM:
        findings.append(Finding(findings[-1].check, "everywhere", f"only the first {_MAXIMUM} are shown"))
    return findings


async def _missing_objects(
    session: Session, batch_id: UUID | None, object_exists: Callable[[str], Awaitable[bool]]
) -> list[Finding]:
    """Files whose content is not in the object store. Asked page by page, with no transaction open."""
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
