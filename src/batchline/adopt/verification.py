"""Checks an adoption: counts per batch and state, lines and results row by row or in a sample, and doctor."""

from collections.abc import Iterator

import msgspec

from batchline.adopt import copying
from batchline.adopt.outcomes import adopted_result, same
from batchline.model import ids
from batchline.store import doctor
from batchline.store.adoption import checks, copies, transactions
from batchline.store.adoption.records import AdoptionRefused, BatchCounts, FinishedRequest, Size
from batchline.store.session import Session, StoreConnection

_MAX_FINDINGS = 100


class Verified(msgspec.Struct, frozen=True):
    """What was compared, and what is wrong. `one_in`: the share of lines and results that were compared."""

    phase: str
    one_in: int
    batches: int
    lines: int
    results: int
    finished_since: int
    findings: list[str]

    @property
    def clean(self) -> bool:
        return not self.findings


async def verify(session: Session, *, one_in: int = 1) -> Verified:
    """Compare the old tables with what is here. May run while workers do."""
    state = await transactions.find(session)
    if state is None or state.phase in ("prepare", "finished"):
        raise AdoptionRefused(
            "there is nothing to verify: verify runs after `batchline adopt prepare` or cutover,"
            " and before finish"
        )
    adopted = state.phase == "adopted"
    async with transactions.step(session, rolled_back=True) as connection:
        counts = await checks.verify_counts(connection) if adopted else []
        lines, different, example = await checks.verify_lines(connection, one_in)
    findings = [finding for one in counts for finding in _judge(one)]
    if different:
        findings.append(f"{different} lines differ from their templates, for example {example!r}")
    results, wrong = await _compare_results(session, state.source, one_in, complete=adopted)
    findings += wrong
    report = await doctor.examine(session)
    findings += [f"doctor: {finding}" for finding in report.findings]
    since = sum(one.since for one in counts)
    return Verified(state.phase, one_in, len(counts), lines, results, since, findings)


async def plan_verify(session: Session) -> Size:
    async with transactions.step(session, rolled_back=True) as connection:
        return await transactions.size(connection)


async def _compare_results(
    session: Session, schema: str, one_in: int, *, complete: bool
) -> tuple[int, list[str]]:
    """Compose the result of every finished request again, and compare it with the stored one.

    Before the cutover not all of them are stored (`complete` is false).
    """
    findings: list[str] = []
    page, span, total = 0, 64, 0
    while len(findings) < _MAX_FINDINGS:
        async with transactions.step(session, rolled_back=True) as connection:
            source = await transactions.source_of(connection, schema)
            if page >= await copies.pages(connection, source):
                break
            async with transactions.by_key(connection):
                requests = await copies.finished_requests(
                    connection, first=page, beyond=page + span, also_copied=True, one_in=one_in
                )
            findings += [_describe(one) for one in await _different(connection, requests, complete)]
        page += span
        total += len(requests)
        span = copying.next_span(span, sum(len(one.response_body or "") for one in requests))
    return total, findings[:_MAX_FINDINGS]


async def _different(
    connection: StoreConnection, requests: list[FinishedRequest], complete: bool
) -> list[FinishedRequest]:
    stored = await copies.stored_outputs(connection, requests)

    def differs(request: FinishedRequest) -> bool:
        found = stored.get((request.lane_id, request.line_no))
        return complete if found is None else not same(*found, adopted_result(request))

    return [request for request in requests if differs(request)]


def _describe(request: FinishedRequest) -> str:
    name = ids.show(ids.BATCH, request.batch_id)
    return (
        f"{name}: the result of line {request.line_no} is missing or differs from request"
        f" {request.request_id}"
    )


def _judge(one: BatchCounts) -> Iterator[str]:
    name = ids.show(ids.BATCH, one.batch_id)
    old = one.completed + one.failed + one.canceled + one.unfinished
    if one.total is None or one.completed_here is None or one.failed_here is None:
        yield f"{name}: it was not created"
        return
    if one.total != old:
        yield f"{name}: it has {one.total} items, but {old} requests"
    if one.missing:
        yield f"{name}: {one.missing} finished requests have no result of the same outcome"
    if one.completed_here + one.failed_here != one.adopted + one.since:
        yield (
            f"{name}: it counts {one.completed_here + one.failed_here} finished items,"
            f" but {one.adopted} were adopted and {one.since} finished since"
        )
