"""The phases of an adoption: prepare, cutover, rollback and finish. `verification` has verify.

    prepare ──▶ prepared ──cutover──▶ adopted ──finish──▶ finished
                   ▲                     │
                   └──────rollback───────┘

Every phase may be killed at any point and run again: it goes on where the last committed step ended. The
cutover and the end of a rollback are one transaction each. Between the two, the old tables are read-only and
keep everything that they had.
"""

import time
from collections.abc import Sequence
from uuid import UUID

import msgspec

from batchline.adopt import copying
from batchline.adopt.copying import NoSteps, Steps
from batchline.adopt.outcomes import adopted_result, written_back
from batchline.model import ids
from batchline.store.adoption import checks, copies, cutover, locks, transactions, write_back
from batchline.store.adoption.records import (
    Adoption,
    AdoptionRefused,
    CutoverSettings,
    LeftOut,
    PossiblySent,
    Size,
)
from batchline.store.adoption.source import Source
from batchline.store.session import Session, StoreConnection

# Passes over the old requests: each finds what was written during the one before. The cutover makes another
# one before it locks anything, so a small rest is left to it.
_MAX_PASSES = 3
_SMALL_SHARE = 0.05
_TRIAL_ROWS = 2_000
# An old daemon that has been silent for longer is dead. fusillade's own limit is 30 s.
DAEMON_SILENCE = 60.0


class PrepareReport(msgspec.Struct, frozen=True):
    """What prepare has done, or would do. `seconds` is measured, or estimated by a trial."""

    shape: str
    size: Size
    lines: int
    results: int
    seconds: float


class CutOver(msgspec.Struct, frozen=True):
    """What a cutover has done, or would do. `seconds` is how long the old tables were locked."""

    batches: int
    unfinished_batches: int
    results: int
    seconds: float
    possibly_sent: Sequence[PossiblySent]
    left_out: Sequence[LeftOut]


class RolledBack(msgspec.Struct, frozen=True):
    """What a rollback has done, or would do."""

    batches: int
    results: int
    pending: int
    seconds: float
    possibly_sent: Sequence[PossiblySent]
    own_batches: Sequence[UUID]


class Finished(msgspec.Struct, frozen=True):
    """What finish has done, or would do. `abandoned`: there was no cutover, so what was copied is deleted."""

    abandoned: bool
    dropped: Sequence[str]
    left_out: Sequence[LeftOut]


# --- prepare -----------------------------------------------------------------------------------------------


async def prepare(session: Session, schema: str, steps: Steps | None = None) -> PrepareReport:
    """Copy files, lines and finished requests, while old programs go on working."""
    reported, started = steps or NoSteps(), time.monotonic()
    source = await _begin(session, schema)
    await reported.reached("begun", 0)
    lines = results = 0
    for _ in range(_MAX_PASSES):
        lines += await copying.copy_files(copying.committing(session), reported)
        await transactions.analyze(session)
        more = await copying.copy_results(session, source, reported)
        results += more
        if more <= _SMALL_SHARE * results:
            break
    async with transactions.step(session, phases=transactions.COPYING) as connection:
        await transactions.set_phase(connection, "prepared", "prepared")
        size = await transactions.size(connection)
    return PrepareReport(source.shape, size, lines, results, time.monotonic() - started)


async def plan_prepare(session: Session, schema: str) -> PrepareReport:
    """What prepare would do. A trial with a few rows, which is rolled back, shows how long it takes."""
    state = await transactions.find(session)
    _refuse_prepare(state, schema)
    async with transactions.step(session, rolled_back=True) as connection:
        source = await transactions.source_of(connection, schema)
        await transactions.create_views(connection, source)
        size = await transactions.size(connection)
        lines = max(0, size.templates - size.copied_lines)
        results = max(0, size.completed + size.failed - size.copied_results)
        seconds = lines / await _line_rate(connection, state) + results / await _result_rate(
            connection, state
        )
    return PrepareReport(source.shape, size, lines, results, seconds)


async def _begin(session: Session, schema: str) -> Source:
    async with transactions.step(session) as connection:
        state = await transactions.find_in(connection)
        _refuse_prepare(state, schema)
        source = await transactions.source_of(connection, schema)
        if state is None or state.phase == "finished":
            await transactions.begin(connection, source)
        await transactions.create_views(connection, source)
    return source


def _refuse_prepare(state: Adoption | None, schema: str) -> None:
    if state is None or state.phase == "finished":
        return
    if state.phase == "adopted":
        raise AdoptionRefused("the cutover is done; run `batchline adopt verify`, rollback or finish")
    if state.source != schema:
        raise AdoptionRefused(
            f"an adoption of schema {state.source} has begun; end it with `batchline adopt finish` first"
        )


async def _line_rate(connection: StoreConnection, state: Adoption | None) -> float:
    """Lines per second: as measured by earlier steps, or by a trial."""
    if state is not None and state.lines_seconds > 0:
        return state.lines / state.lines_seconds
    lines, seconds = await copies.trial_lines(connection, _TRIAL_ROWS)
    # Numbering the lines takes about as long again.
    return lines / (2 * seconds) if lines and seconds > 0 else float("inf")


async def _result_rate(connection: StoreConnection, state: Adoption | None) -> float:
    if state is not None and state.results_seconds > 0:
        return state.results / state.results_seconds
    started = time.monotonic()
    requests = await copies.trial_requests(connection, _TRIAL_ROWS)
    await copies.add_results(connection, [adopted_result(request) for request in requests])
    return len(requests) / (time.monotonic() - started) if requests else float("inf")


# --- cutover -----------------------------------------------------------------------------------------------


async def cut_over(
    session: Session,
    settings: CutoverSettings,
    *,
    daemons_stopped: bool = False,
    leave_unadopted: bool = False,
    steps: Steps | None = None,
    rehearse: bool = False,
) -> CutOver:
    """Adopt the database. `rehearse`: do all of it, without locks, and take it back.

    Refuses while old daemons are alive; `daemons_stopped` overrides that, for those without a heartbeat.
    """
    reported = steps or NoSteps()
    source = await _ready_for_cutover(session, daemons_stopped, rehearse)
    if not rehearse:
        # What was written since prepare is copied before anything is locked, so that the window is short.
        await copying.copy_files(copying.committing(session), reported)
        await copying.copy_results(session, source, reported)
        await transactions.analyze(session)
    async with transactions.step(session, phases=transactions.PREPARED, rolled_back=rehearse) as connection:
        started = time.monotonic()
        if not rehearse:
            await locks.lock_old_tables(connection, source)
            await _refuse_living_daemons(connection, daemons_stopped)
        await reported.reached("locked", 0)
        results = await _copy_rest(connection, reported)
        left_out = await cutover.left_out(connection)
        _refuse_unadopted(left_out, leave_unadopted or rehearse)
        batches, unfinished = await cutover.create_adopted(connection, settings)
        await reported.reached("batches created", batches)
        if not rehearse:
            await _refuse_missing_results(connection)
            await locks.fence(connection, source)
        await transactions.set_phase(connection, "adopted", "cutover")
        sent = await cutover.possibly_sent(connection, "cutover")
        await reported.reached("committing", 0)
        seconds = time.monotonic() - started
    await reported.reached("adopted", batches)
    return CutOver(batches, unfinished, results, seconds, sent, left_out)


async def _copy_rest(connection: StoreConnection, steps: Steps) -> int:
    """Copy what was written since the last pass, and decide which batches can be adopted."""
    await copying.copy_files(copying.within(connection), steps)
    results = await copying.copy_rest(connection)
    await cutover.judge(connection)
    await steps.reached("rest copied", results)
    return results


async def _ready_for_cutover(session: Session, daemons_stopped: bool, rehearse: bool) -> Source:
    state = await transactions.find(session)
    if state is not None and state.phase == "adopted":
        raise AdoptionRefused("the cutover is done already; `batchline adopt verify` checks it")
    _expect(state, "prepared", "cutover")
    assert state is not None
    async with transactions.step(session, phases=transactions.PREPARED, rolled_back=rehearse) as connection:
        source = await transactions.source_of(connection, state.source)
        await transactions.create_views(connection, source)
        if not rehearse:
            await _refuse_living_daemons(connection, daemons_stopped)
    return source


async def _refuse_living_daemons(connection: StoreConnection, daemons_stopped: bool) -> None:
    # A heartbeat is a fact, which no option overrides; a recent claim is only a hint.
    alive = await cutover.living_daemons(connection, DAEMON_SILENCE, by_claims=not daemons_stopped)
    if alive:
        raise AdoptionRefused(
            f"{len(alive)} old daemons were active within the last {DAEMON_SILENCE:.0f} s; stop them and try"
            " again after that time; --daemons-stopped overrides recent claims, but no heartbeat",
            [f"daemon {name}: last seen {seen_at:%Y-%m-%d %H:%M:%S %Z}" for name, seen_at in alive],
        )


def _refuse_unadopted(left_out: Sequence[LeftOut], allowed: bool) -> None:
    lost = [one for one in left_out if one.unfinished]
    if lost and not allowed:
        raise AdoptionRefused(
            f"{sum(one.unfinished for one in lost)} unfinished requests cannot be adopted; nothing was"
            " changed: let the old daemons finish or cancel them, or leave them with --leave-unadopted",
            [describe_left_out(one) for one in lost],
        )


async def _refuse_missing_results(connection: StoreConnection) -> None:
    """Keep finished requests from running again, whatever the reason that they were not copied."""
    missing = await cutover.missing_results(connection)
    if missing:
        raise AdoptionRefused(
            f"{sum(results for _, results in missing)} finished requests were not copied, and"
            " would run again; nothing was changed: run the same command again; if that does not help, delete"
            " what was copied with `batchline adopt finish`, and prepare again",
            [f"{ids.show(ids.BATCH, batch_id)}: {results} are missing" for batch_id, results in missing],
        )


def describe_left_out(one: LeftOut) -> str:
    name = "requests" if one.batch_id is None else ids.show(ids.BATCH, one.batch_id)
    return f"{name}: {one.reason} ({one.unfinished} unfinished)"


# --- rollback ----------------------------------------------------------------------------------------------


async def roll_back(session: Session, *, leave_own: bool = False, steps: Steps | None = None) -> RolledBack:
    """Give the work back to the old tables: what finished meanwhile, and pending requests for the rest.

    Results are written back while workers may still run. Then, in one transaction that locks workers out, the
    rest follows. Batches created since the cutover are unknown in the old tables: they are refused, or stay
    here.
    """
    reported, started = steps or NoSteps(), time.monotonic()
    source = await _ready_for_rollback(session, leave_own)
    results = await _write_back_online(session, source, reported)
    async with transactions.step(session, phases=transactions.ADOPTED) as connection:
        await locks.lock_our_tables(connection)
        await _refuse_busy_workers(connection)
        own = await _refuse_own_batches(connection, leave_own)
        await locks.lock_old_tables(connection, source)
        await locks.lift_fence(connection)
        await reported.reached("locked", 0)
        rest, pending = await _write_back_rest(connection, source)
        await reported.reached("unfinished reset", pending)
        await write_back.add_held(connection)
        batches = await write_back.remove_adopted(connection)
        await transactions.set_phase(connection, "prepared", "rollback")
        sent = await cutover.possibly_sent(connection, "rollback")
        await reported.reached("committing", 0)
    await reported.reached("rolled back", batches)
    return RolledBack(batches, results + rest, pending, time.monotonic() - started, sent, own)


async def _write_back_rest(connection: StoreConnection, source: Source) -> tuple[int, int]:
    """Write back what is left. Returns the number of results, and of unfinished requests that changed."""
    await transactions.read_whole(connection)
    missing = await write_back.add_missing_requests(connection, source)
    results = await write_back.unwritten_results(connection)
    await write_back.write_back(connection, source, [written_back(one) for one in results])
    reset = await write_back.reset_unfinished(connection, source)
    await write_back.write_back_cancels(connection, source)
    return len(results), missing + reset


async def plan_rollback(session: Session) -> RolledBack:
    state = await transactions.find(session)
    _expect(state, "adopted", "rollback")
    async with transactions.step(session, rolled_back=True) as connection:
        await transactions.read_whole(connection)
        counts = await checks.verify_counts(connection)
        own = [batch_id for batch_id, _, _ in await write_back.own_batches(connection)]
        since = sum(one.since for one in counts)
        # An update of an old row takes about as long as the copy of one.
        seconds = since / await _result_rate(connection, state)
    pending = sum(one.unfinished - one.since for one in counts)
    return RolledBack(len(counts), since, pending, seconds, (), own)


async def _ready_for_rollback(session: Session, leave_own: bool) -> Source:
    state = await transactions.find(session)
    _expect(state, "adopted", "rollback")
    assert state is not None
    async with transactions.step(session, phases=transactions.ADOPTED) as connection:
        await _refuse_own_batches(connection, leave_own)
        return await transactions.source_of(connection, state.source)


async def _write_back_online(session: Session, source: Source, steps: Steps) -> int:
    """Write results back in steps.

    A row that a step updates moves, perhaps to a later page. There it is finished, and not found again.
    """
    page, span, total = 0, 64, 0
    while True:
        async with transactions.step(session, phases=transactions.ADOPTED) as connection:
            if page >= await copies.pages(connection, source):
                return total
            async with transactions.by_key(connection):
                results = await write_back.unwritten_results(connection, first=page, beyond=page + span)
            await write_back.write_back(connection, source, [written_back(one) for one in results])
        page += span
        total += len(results)
        span = copying.next_span(span, sum(len(one.output) for one in results))
        await steps.reached("results written back", len(results))


async def _refuse_busy_workers(connection: StoreConnection) -> None:
    busy = await write_back.busy_workers(connection)
    if busy:
        raise AdoptionRefused(
            f"{len(busy)} workers are running adopted batches; what has finished is written back already:"
            " stop the workers, and run the same command again",
            [f"worker {name}: {items} items" for name, items in busy],
        )


async def _refuse_own_batches(connection: StoreConnection, leave: bool) -> list[UUID]:
    own = await write_back.own_batches(connection)
    if own and not leave:
        raise AdoptionRefused(
            f"{len(own)} batches were created since the cutover, and the old tables do not have them;"
            " with --leave-new they stay in Batchline, and its workers finish them",
            [
                f"{ids.show(ids.BATCH, batch_id)}: {total} lines, {'unfinished' if running else 'ended'}"
                for batch_id, total, running in own
            ],
        )
    return [batch_id for batch_id, _, _ in own]


# --- finish ------------------------------------------------------------------------------------------------


async def finish(
    session: Session,
    *,
    drop: bool = False,
    lose_unadopted: bool = False,
    steps: Steps | None = None,
    dry_run: bool = False,
) -> Finished:
    """End the adoption. After a cutover there is no way back then; before one, what was copied is deleted.

    Old tables are dropped only with `drop`, and only after a cutover.
    """
    reported = steps or NoSteps()
    state = await transactions.find(session)
    if state is None or state.phase == "finished":
        raise AdoptionRefused("there is no adoption to finish; `batchline adopt prepare` begins one")
    if state.phase != "adopted":
        return await _abandon(session, drop, reported, dry_run)
    async with transactions.step(session, phases=transactions.ADOPTED, rolled_back=dry_run) as connection:
        source = await transactions.source_of(connection, state.source)
        left_out = await cutover.left_out(connection)
        if drop and left_out and not lose_unadopted and not dry_run:
            raise AdoptionRefused(
                "some rows of the old tables were not adopted, and would be lost; nothing was dropped:"
                " save them, and then say --lose-unadopted",
                [describe_left_out(one) for one in left_out],
            )
        await locks.drop_fence(connection)
        await transactions.forget(connection)
        if drop:
            await locks.drop_old_tables(connection, source)
        await transactions.set_phase(connection, "finished", "finish")
        await reported.reached("committing", 0)
    await reported.reached("finished", 0)
    return Finished(False, source.old_tables if drop else (), left_out)


async def _abandon(session: Session, drop: bool, steps: Steps, dry_run: bool) -> Finished:
    if drop:
        raise AdoptionRefused("there was no cutover, so the old tables are in use; finish without --drop")
    if dry_run:
        return Finished(True, (), ())
    while True:
        async with transactions.step(session, phases=transactions.COPYING) as connection:
            file_no = await copies.any_file(connection)
            if file_no is None:
                await locks.drop_fence(connection)
                await transactions.forget(connection)
                await transactions.set_phase(connection, "finished", "finish")
                break
            await copies.forget_file(connection, file_no)
        await steps.reached("file forgotten", 1)
    return Finished(True, (), ())


def _expect(state: Adoption | None, phase: str, act: str) -> None:
    if state is not None and state.phase == phase:
        return
    found = "no adoption has begun" if state is None else f"the adoption is in phase {state.phase!r}"
    before = {"cutover": "prepare", "rollback": "cutover"}[act]
    raise AdoptionRefused(f"{act} is not possible: {found}; `batchline adopt {before}` comes first")
