"""One batch in full: what happened when, its rate, its lanes, why items failed, its files, and what may be
done."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from batchline.batches.batch_object import failure_objects
from batchline.batches.pauses import pause_reason
from batchline.dashboard import approval_requests
from batchline.dashboard.approval_requests import ApprovalRequest
from batchline.dashboard.figures import BatchFigures, FileName, StateCounts, counts_of, figures_of
from batchline.dashboard.upstreams import UpstreamDirectory
from batchline.governance.access import Actor, may_submit
from batchline.governance.registry import Registry
from batchline.model import Batch, BatchStatus, GovernedBatch, PauseReason, Role, ids
from batchline.store import failures, operations, overview
from batchline.store.listing import BatchSummary
from batchline.store.overview import LaneCounts, ProgressNote
from batchline.store.session import Session

_STOPPABLE = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.PAUSED)
_HAPPENED = (
    ("created_at", "created"),
    ("in_progress_at", "started"),
    ("held_at", "waiting for an approval or a release"),
    ("paused_at", "paused"),
    ("cancelling_at", "cancelled"),
    ("expiring_at", "its completion window ended"),
    ("finalizing_at", "all lines ended; its files are written"),
    ("ended_at", "ended"),
)


class Happening(msgspec.Struct, frozen=True):
    at: datetime
    what: str
    detail: str | None


class LaneFigures(msgspec.Struct, frozen=True):
    """`capped`: more than 10,000 items have failed; the rest is counted as completed."""

    model: str
    counts: StateCounts
    capped: bool


class StepFigures(msgspec.Struct, frozen=True):
    """How far a batch that runs in steps has come."""

    plan: str
    # How many steps have begun.
    step: int
    # Lines that may run so far, with those that have ended.
    released: int
    # Why it does not go on, in sentences; null: it goes on by itself, or has ended.
    stopped: str | None
    next_at: datetime | None


class BatchSettingsFigures(msgspec.Struct, frozen=True):
    concurrency: int | None
    priority: int
    deadline: datetime | None
    upstream: str | None
    max_attempts: int
    max_failed: int | float | None
    steps: StepFigures | None


class BatchFiles(msgspec.Struct, frozen=True):
    input: FileName
    output: FileName | None
    errors: FileName | None


class BatchView(msgspec.Struct, frozen=True):
    timeline: Sequence[Happening]
    rate: Sequence[tuple[datetime, float]]
    lanes: Sequence[LaneFigures]
    failures: Sequence[dict[str, Any]]
    settings: BatchSettingsFigures
    files: BatchFiles
    actions: Sequence[str]
    # Of a governed batch that waits for a decision.
    approval_request: ApprovalRequest | None


async def read(
    session: Session,
    actor: Actor,
    registry: Registry,
    summary: BatchSummary,
    upstreams: UpstreamDirectory,
) -> dict[str, Any]:
    """The figures of a batch and the rest of its page."""
    batch = summary.batch
    governed = None
    if summary.operation is not None:
        governed = await operations.get(session, actor.tenant, batch.id)
    request = None
    if governed is not None:
        request = await approval_requests.of_batch(session, actor, registry, governed)
    figures = figures_of(summary, upstreams.of_batch)
    lanes = await overview.lanes(session, batch.id)
    page = BatchView(
        timeline=timeline(batch),
        rate=rates(await overview.notes(session, batch.id)),
        lanes=[_lane(batch, each, alone=len(lanes) == 1) for each in lanes],
        failures=failure_objects(await failures.causes(session, batch)),
        settings=_settings(batch, figures, await _steps(session, batch, figures)),
        files=_files(summary),
        actions=_acts(batch) if governed is None else allowed(actor, registry, batch, governed, request),
        approval_request=request,
    )
    return msgspec.structs.asdict(figures) | msgspec.structs.asdict(page)


def timeline(batch: Batch) -> list[Happening]:
    found = [
        Happening(at, what, _detail(batch, name))
        for name, what in _HAPPENED
        if (at := getattr(batch, name)) is not None
    ]
    return sorted(found, key=lambda each: each.at)


def rates(notes: Sequence[ProgressNote]) -> list[tuple[datetime, float]]:
    """Items per second until each moment that was noted."""
    known = (note for note in notes if note.seconds > 0)
    return [(note.at, round((note.completed + note.failed) / note.seconds, 3)) for note in known]


def allowed(
    actor: Actor, registry: Registry, batch: Batch, governed: GovernedBatch, request: ApprovalRequest | None
) -> list[str]:
    """What the actor may do with a governed batch now. Its history is kept, so nobody deletes it."""
    owns = governed.user_id == actor.user or actor.role.administers
    operation = registry.find(governed.operation)
    retries = operation is not None and may_submit(actor, operation) and _may_be_retried(governed)
    acts = [act for act in _acts(batch) if owns and act not in ("delete", "retry")]
    if owns and retries:
        acts.append("retry")
    if owns and governed.held and batch.status in _STOPPABLE:
        acts.append("release")
    if request is not None and request.may_decide:
        acts.append("approve")
    if request is not None and actor.role is not Role.USER:
        acts.append("reject")
    return acts


def _may_be_retried(governed: GovernedBatch) -> bool:
    """Failed children run again, others do not; and not after a cancel or the deadline."""
    closed = governed.cancelling_at or governed.expiring_at or governed.purging_at
    return governed.ended_at is not None and governed.failed > 0 and closed is None


def _acts(batch: Batch) -> list[str]:
    counts = batch.counts
    unfinished = counts.failed + counts.cancelled + counts.expired
    possible = {
        "cancel": batch.status in _STOPPABLE,
        "pause": batch.status is BatchStatus.IN_PROGRESS,
        "resume": batch.status is BatchStatus.PAUSED and batch.paused_at is not None,
        "retry": batch.ended_at is not None and unfinished > 0 and batch.purging_at is None,
        "change": batch.status in _STOPPABLE,
        "delete": batch.ended_at is not None,
    }
    return [act for act, is_possible in possible.items() if is_possible]


def _detail(batch: Batch, name: str) -> str | None:
    if name == "ended_at":
        return batch.status.value
    if name == "paused_at":
        return batch.paused_by
    return batch.finalize_error if name == "finalizing_at" and batch.ended_at is None else None


def _lane(batch: Batch, lane: LaneCounts, *, alone: bool) -> LaneFigures:
    """A batch with one lane counts exactly what its lane has."""
    if alone:
        return LaneFigures(lane.model, counts_of(batch), capped=False)
    frozen = batch.finalizing_at is not None
    outstanding = 0 if frozen else lane.in_flight + lane.retrying + lane.returned
    finished = lane.next - outstanding
    unclaimed = lane.total - lane.next
    cancelled, expired = batch.cancelling_at is not None, batch.expiring_at is not None
    counts = StateCounts(
        total=lane.total,
        completed=max(finished - lane.failed, 0),
        failed=lane.failed,
        retrying=0 if frozen else lane.retrying,
        in_flight=0 if frozen else lane.in_flight,
        pending=(0 if frozen else lane.returned) + (0 if cancelled or expired else unclaimed),
        reused=0,
        cancelled=unclaimed if cancelled else 0,
        expired=unclaimed if expired and not cancelled else 0,
    )
    return LaneFigures(lane.model, counts, lane.capped)


def _settings(batch: Batch, figures: BatchFigures, steps: StepFigures | None) -> BatchSettingsFigures:
    settings = batch.settings
    return BatchSettingsFigures(
        concurrency=batch.concurrency,
        priority=figures.priority,
        deadline=batch.expires_at,
        upstream=figures.upstream,
        max_attempts=settings.max_attempts,
        max_failed=settings.max_failed if settings.max_failed is not None else settings.max_failed_percent,
        steps=steps,
    )


async def _steps(session: Session, batch: Batch, figures: BatchFigures) -> StepFigures | None:
    plan = batch.settings.steps
    if plan is None:
        return None
    released = batch.total if batch.step_total is None else batch.step_total
    stopped = None
    if figures.pause is not None:
        stopped = stop_reason(figures.pause.rule, batch, await pause_reason(session, batch))
    return StepFigures(plan.text or "all at once", batch.step, released, stopped, batch.next_step_at)


def stop_reason(rule: str | None, batch: Batch, reason: PauseReason | None) -> str:
    """Why no step begins, and what to do, in sentences."""
    limit = 0 if reason is None or reason.threshold is None else reason.threshold
    match rule:
        case None:
            return "A user has paused it. Resume it to go on with the next step."
        case "approval" if batch.step_total is not None and batch.finished > 0:
            return "Its sample has run. The rest waits until an approver has approved the results."
        case "approval":
            return "It waits for an approval. No line has run."
        case "hold":
            return "It is held. Steps begin when it is released."
        case "sample":
            return "Its sample has run. Look at the results, then resume it to run the rest, or cancel it."
        case "max_failed":
            return (
                f"{_lines(batch.failed, 'has', 'have')} failed, and {int(limit):,} may."
                " Look at the failures, then resume or cancel it."
            )
        case "alike":
            return (
                f"The first lines all failed alike, {batch.failed:,} so far."
                " Look at the failures, then resume or cancel it."
            )
        case "max_cost":
            return (
                f"The next request could cost more than the limit of ${limit:,.2f}. Resume it to spend more."
            )
        case "max_tokens":
            return (
                f"The next request could use more than the limit of {int(limit):,} tokens."
                " Resume it to spend more."
            )
        case _:
            return f"The rule {rule} has paused it. Resume it to go on."


def _lines(number: int, one: str, many: str) -> str:
    return f"{number:,} line {one}" if number == 1 else f"{number:,} lines {many}"


def _files(summary: BatchSummary) -> BatchFiles:
    batch = summary.batch
    # While a batch runs, its finished lines can be read under the id of the future file.
    output = batch.output_file_id if batch.ended_at else batch.planned_output_id
    hex_id = ids.show(ids.BATCH, batch.id)
    return BatchFiles(
        FileName(ids.show(ids.FILE, batch.file_id), summary.filename),
        None if output is None else FileName(ids.show(ids.FILE, output), f"{hex_id}_output.jsonl"),
        None
        if batch.error_file_id is None
        else FileName(ids.show(ids.FILE, batch.error_file_id), f"{hex_id}_error.jsonl"),
    )
