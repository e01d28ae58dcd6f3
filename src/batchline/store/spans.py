"""Claim, fetch, settle, park, release: the statements that move items between hands."""

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import psycopg
from psycopg.types.json import Jsonb

from batchline import __version__
from batchline.model import Claim, Item, KeyLoad, PollResult, RunSettings, Settled, TaskParked, Verdict
from batchline.store import sinks, task_ids
from batchline.store.arrays import Float8Array, Int2Array, Int8Array, MultirangeArray, TextArray
from batchline.store.schedules import NO_SCHEDULES, ScheduleScope
from batchline.store.session import Row, Session, StatementRefused, StoreUnavailable, run
from batchline.store.statements import statement
from batchline.store.verdicts import Grouped

NOTHING_HELD: Mapping[UUID, int | None] = MappingProxyType({})

_NO_LIMIT = 2**31 - 1
_VALUE_ERRORS = (psycopg.InternalError, struct.error, OverflowError, TypeError, ValueError)
# Bytes a second that the database takes at the least: a large settle has so much more time.
_MIN_RATE = 2**20


OnLate: TypeAlias = Callable[[Sequence[Verdict]], None]


class WorkerId(msgspec.Struct, frozen=True):
    """Who claims: one incarnation of a worker, and how long its lease lasts."""

    id: UUID
    name: str
    lease: timedelta


class Scope(msgspec.Struct, frozen=True):
    """What is worked on: the routing keys that are served (None: all), all but some, or one batch only. The
    routing key of a line is the upstream that its batch names, or else its model."""

    keys: tuple[str, ...] | None = None
    batch_id: UUID | None = None
    excluded: tuple[str, ...] = ()
    # Nor those that begin so.
    excluded_prefixes: tuple[str, ...] = ()
    # Only those that begin so; None: all.
    below: tuple[str, ...] | None = None
    # Batches of which the worker has as many lines as it may send.
    without: tuple[UUID, ...] = ()
    # The name of the upstream that the lines are sent to, if their model has several.
    sender: str | None = None

    def covers(self, key: str, batch_id: UUID) -> bool:
        """Whether it includes lines of this batch with this routing key."""
        return self.batch_id in (None, batch_id) and self.includes(key)

    def includes(self, key: str) -> bool:
        """Whether it includes lines with this routing key, of some batch."""
        return (
            (self.keys is None or key in self.keys)
            and key not in self.excluded
            and not key.startswith(self.excluded_prefixes)
            and (self.below is None or key.startswith(self.below))
        )

    def params(self) -> dict[str, object]:
        left = [_literal(key) for key in self.excluded] + [
            _literal(key) + "%" for key in self.excluded_prefixes
        ]
        return {
            "keys": None if self.keys is None else list(self.keys),
            "excluded": left,
            "below": None if self.below is None else [_literal(key) + "%" for key in self.below],
            "batch": self.batch_id,
            "without": list(self.without),
            "sender": self.sender,
        }


def _literal(key: str) -> str:
    """As a pattern of LIKE that means this key and no other."""
    return key.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


async def claim(
    session: Session, worker: WorkerId, scope: Scope, limit: int, max_tasks: int | None = None
) -> list[Claim]:
    """Claim up to `limit` items. `max_tasks`: the scope is a provider, which may have so many tasks."""
    rows = await session.rows(
        statement("claim"),
        {
            **scope.params(),
            "worker": worker.id,
            "name": worker.name,
            "lease": worker.lease,
            "limit": limit,
            "max_tasks": max_tasks,
        },
    )
    return [claim_of(row, scope.sender) for row in rows]


def claim_of(row: Sequence[Any], sender: str | None = None) -> Claim:
    of_span, settings, rest = row[:10], row[10], row[11:]
    *before, batch_id, attempt, task_id = of_span[:5]
    of_task = (*before, batch_id, attempt, task_ids.returned(batch_id, task_id))
    values = (*of_task, *of_span[5:], msgspec.convert(settings, RunSettings), *rest, sender)
    return Claim(*values)


async def claim_new(
    session: Session, worker: WorkerId, scope: Scope, batch_id: UUID, limit: int
) -> tuple[list[Claim], list[Item] | None]:
    """Claim from a batch that was just announced. The items are None where they must be fetched."""
    rows = await session.raw_rows(
        statement("claim_new"),
        {
            **scope.params(),
            "batch": batch_id,
            "worker": worker.id,
            "name": worker.name,
            "lease": worker.lease,
            "limit": limit,
        },
    )
    if not rows:
        return [], []
    span_id, lane_id, of, attempt, task_id, size, url, model, key, seconds_left, settings, *rest = rows[0]
    lease_left, concurrency, tenant, *_ = rest
    claim = Claim(
        span_id=span_id,
        lane_id=lane_id,
        batch_id=of,
        attempt=attempt,
        task_id=task_id,
        size=size,
        url=url.decode(),
        model=model.decode(),
        key=key.decode(),
        seconds_left=seconds_left,
        settings=msgspec.convert(settings, RunSettings),
        lease_left=lease_left,
        concurrency=concurrency,
        tenant=tenant.decode(),
        sender=scope.sender,
    )
    if any(body is None for *_, body in rows):
        return [claim], None
    return [claim], [Item(claim, *row[-4:]) for row in rows]


async def fetch(
    session: Session, worker_id: UUID, claims: Sequence[Claim], max_bytes: int | None = None
) -> list[Item]:
    """The lines of these claims. Together their bodies have no more than `max_bytes`: each line has an equal
    share of them, and a body that is longer is left out."""
    by_span = {claim.span_id: claim for claim in claims}
    largest = _NO_LIMIT
    if max_bytes is not None:
        largest = min(max_bytes // max(1, sum(claim.size for claim in claims)), _NO_LIMIT)
    rows = await session.raw_rows(
        statement("fetch"), {"spans": Int8Array(list(by_span)), "worker": worker_id, "largest": largest}
    )
    return [Item(by_span[span_id], *rest) for span_id, *rest in rows]


async def settle(
    session: Session,
    worker_id: UUID,
    verdicts: Sequence[Verdict],
    on_late: OnLate = lambda late: None,
) -> list[Settled]:
    """Bring verdicts in, as many as still count; what that did to each batch. `on_late` is called with those
    that do not count."""
    grouped = Grouped(verdicts)
    settled, refused = await _settle(session, worker_id, grouped) if len(grouped) else ([], [])
    if refused and len(grouped) < len(verdicts):
        # Something in these groups comes too late; whatever else they hold still counts.
        grouped_apart = Grouped(grouped.members(refused), apart=True)
        more, refused = await _settle(session, worker_id, grouped_apart)
        settled += more
        on_late(grouped_apart.members(refused))
    elif refused:
        on_late(grouped.members(refused))
    if grouped.parked:
        settled += await _park(session, worker_id, grouped.parked)
    return merged(settled)


def merged(settled: Sequence[Settled]) -> list[Settled]:
    """One for each batch, in the order of their first mention."""
    by_batch: dict[UUID, Settled] = {}
    for row in settled:
        before = by_batch.get(row.batch_id)
        by_batch[row.batch_id] = (
            row
            if before is None
            else Settled(
                row.batch_id,
                before.ended + row.ended,
                before.finished or row.finished,
                before.closing or row.closing,
                before.paused or row.paused,
                before.step_ended or row.step_ended,
                before.emitted or row.emitted,
            )
        )
    return list(by_batch.values())


async def _settle(session: Session, worker_id: UUID, grouped: Grouped) -> tuple[list[Settled], list[int]]:
    params = {"worker": worker_id, **grouped.columns()}
    extra_time = grouped.size / _MIN_RATE
    try:
        if grouped.sunk:
            rows = await _settle_with_sinks(session, grouped, params, extra_time)
        else:
            rows = await session.rows(statement("settle"), params, extra_time=extra_time)
    except _VALUE_ERRORS as error:
        # The driver cannot send a value, or the server fails at it: the caller looks for the one.
        raise StatementRefused(f"{type(error).__name__}: {error}".strip()) from error
    except StoreUnavailable as error:
        if isinstance(error.__cause__, psycopg.errors.ProgramLimitExceeded):
            raise StatementRefused(str(error)) from error
        raise
    return [Settled(*row) for *row, no, _ in rows if no is None], _refused(rows)


async def _settle_with_sinks(
    session: Session, grouped: Grouped, params: dict[str, Any], extra_time: float
) -> list[Row]:
    """Settle, and insert rows into tables of the user's for all that counts, in one transaction."""
    async with session.transaction(extra_time=extra_time) as connection:
        rows = await run(connection, statement("settle"), params, prepare=True)
        await sinks.insert(connection, grouped.sink_rows(_refused(rows)))
    return rows


def _refused(rows: Sequence[Row]) -> list[int]:
    """The numbers of groups that did not count."""
    return [no for *_, no, _ in rows if no is not None]


async def _park(session: Session, worker_id: UUID, verdicts: Sequence[TaskParked]) -> list[Settled]:
    """Park items. Their routing key stands for the upstream: it is the same before and after routing."""
    tasks = [
        ParkedTask(
            each.item.claim,
            (each.item.ordinal,),
            each.item.claim.key,
            task_ids.stored(each.item, each.task_id),
            each.delay,
            0 if each.polled else each.item.claim.losses,
        )
        for each in verdicts
    ]
    try:
        rows = await park(session, worker_id, tasks)
    except psycopg.errors.UniqueViolation as error:
        raise StatementRefused(f"another item is parked as task {verdicts[0].task_id!r}") from error
    parked = {(batch_id, task_id) for batch_id, _, closing, task_id in rows if closing is not None}
    if late := [
        each
        for each, task in zip(verdicts, tasks, strict=True)
        if (task.claim.batch_id, task.task_id) not in parked
    ]:
        await _abandon(session, late)
    return [Settled(batch_id, 0, finished=False, closing=bool(closing)) for batch_id, _, closing, _ in rows]


async def _abandon(session: Session, late: Sequence[TaskParked]) -> None:
    """Note tasks that were accepted after their batch had ended or was deleted."""
    claims = [each.item.claim for each in late]
    params = {
        "upstreams": [claim.key for claim in claims],
        "tasks": [each.task_id for each in late],
        "batches": [claim.batch_id for claim in claims],
        "lanes": [claim.lane_id for claim in claims],
        "urls": [claim.url for claim in claims],
        "models": [claim.model for claim in claims],
        "settings": [msgspec.json.encode(claim.settings).decode() for claim in claims],
    }
    await session.rows(statement("abandon_tasks"), params)


class ParkedTask(msgspec.Struct, frozen=True):
    """Items of one span that a provider has accepted as one task."""

    claim: Claim
    ordinals: tuple[int, ...]
    upstream: str
    task_id: str
    # Seconds until the task is polled.
    delay: float
    # How many workers in a row were lost while they polled it.
    losses: int = 0


async def park(
    session: Session, worker_id: UUID, tasks: Sequence[ParkedTask]
) -> list[tuple[UUID, int, bool | None, str]]:
    """Move items into spans that wait for a provider's tasks. Of each task that was parked: its batch, how
    many items were moved, whether the batch is being cancelled or has expired (None: it was deleted), and the
    task's id."""
    rows = await session.rows(
        statement("park"),
        {
            "worker": worker_id,
            "spans": Int8Array([task.claim.span_id for task in tasks]),
            "lanes": Int8Array([task.claim.lane_id for task in tasks]),
            "batches": [task.claim.batch_id for task in tasks],
            "ordinals": MultirangeArray([sorted(task.ordinals) for task in tasks]),
            "upstreams": TextArray([task.upstream.encode() for task in tasks]),
            "tasks": TextArray([task.task_id.encode() for task in tasks]),
            "delays": Float8Array([task.delay for task in tasks]),
            "losses": Int2Array([task.losses for task in tasks]),
        },
    )
    return [(batch_id, size, closing, task_id) for batch_id, size, closing, task_id in rows]


async def release(
    session: Session, worker_id: UUID, some: Collection[int] | None = None, *, sent: bool = True
) -> list[UUID]:
    """Free what the worker holds, all of it or some spans; the batches that were concerned. `sent`: a
    provider may have accepted the items."""
    params = {"worker": worker_id, "spans": None if some is None else sorted(some), "sent": sent}
    return [batch_id for (batch_id,) in await session.rows(statement("release"), params)]


async def unknown_spans(session: Session, worker_id: UUID, known: Collection[int]) -> set[int]:
    """The worker's spans that are not among the `known`."""
    params = {"worker": worker_id, "known": Int8Array(sorted(known))}
    return {span_id for (span_id,) in await session.rows(statement("unknown_spans"), params)}


async def poll(
    session: Session,
    worker_id: UUID,
    scope: Scope,
    hooks: Sequence[str] = (),
    held: Mapping[UUID, int | None] = NOTHING_HELD,
    schedules: ScheduleScope = NO_SCHEDULES,
) -> PollResult:
    """See what there is to do, and when the next known thing comes due. `hooks` and `schedules` are those of
    this worker, `held` the batches that it holds lines of, with the concurrency that it knows of each."""
    params = {
        **scope.params(),
        "worker": worker_id,
        "hooks": list(hooks),
        "held": list(held),
        "limits": [limit or 0 for limit in held.values()],
        **schedules.params(),
    }
    rows = await session.rows(statement("poll"), params)
    return PollResult(*rows[0])


async def renew(session: Session, worker: WorkerId, loads: Sequence[KeyLoad] = ()) -> None:
    """Renew the lease, and report what the worker does."""
    params = {
        "worker": worker.id,
        "name": worker.name,
        "lease": worker.lease,
        "loads": Jsonb(loads, dumps=msgspec.json.encode),
        "version": __version__,
    }
    await session.rows(statement("renew"), params)


async def near_deadline(session: Session, scope: Scope, seconds: float) -> list[tuple[UUID, str]]:
    """Batches with lines to claim whose deadline is so near, with the routing keys of these lines."""
    params = scope.params()
    wanted = {"keys": params["keys"], "excluded": params["excluded"], "seconds": seconds}
    return [(batch_id, key) for batch_id, key in await session.rows(statement("near_deadline"), wanted)]


async def live_workers(session: Session) -> list[tuple[UUID, str]]:
    return [(worker_id, name) for worker_id, name in await session.rows(statement("live_workers"), {})]


async def expire(session: Session, worker_id: UUID) -> None:
    """End the lease of a worker whose process is known to be dead."""
    await session.rows(statement("expire_worker"), {"worker": worker_id})


async def leave(session: Session, worker_id: UUID) -> None:
    await session.rows(statement("leave"), {"worker": worker_id})
