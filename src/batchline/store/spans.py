"""Claim, fetch, settle, park, release: the statements that move items between hands."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from batchline.model import (
    NO_USAGE,
    Claim,
    Completed,
    Deferred,
    Failed,
    Horizon,
    Item,
    Retry,
    RunSettings,
    Settled,
    Verdict,
)
from batchline.store.arrays import Float8Array, Int2Array, Int4Array, Int8Array, TextArray
from batchline.store.session import Session
from batchline.store.statements import statement

_MAX_INT = 2**31 - 1


class WorkerId(msgspec.Struct, frozen=True):
    """Who claims: one incarnation of a worker, and how long its lease lasts."""

    id: UUID
    name: str
    lease: timedelta


class Scope(msgspec.Struct, frozen=True):
    """What a worker works on: the routing keys it serves (None: all), or one batch only."""

    keys: tuple[str, ...] | None = None
    batch_id: UUID | None = None

    def params(self) -> dict[str, object]:
        return {"keys": None if self.keys is None else list(self.keys), "batch": self.batch_id}


async def claim(session: Session, worker: WorkerId, scope: Scope, limit: int) -> list[Claim]:
    rows = await session.rows(
        statement("claim"),
        {**scope.params(), "worker": worker.id, "name": worker.name, "lease": worker.lease, "limit": limit},
    )
    return [Claim(*(*row[:-1], msgspec.convert(row[-1], RunSettings))) for row in rows]


async def fetch(session: Session, worker_id: UUID, claims: Sequence[Claim]) -> list[Item]:
    by_span = {claim.span_id: claim for claim in claims}
    rows = await session.raw_rows(
        statement("fetch"), {"spans": Int8Array(list(by_span)), "worker": worker_id}
    )
    return [Item(by_span[span_id], *rest) for span_id, *rest in rows]


async def settle(session: Session, worker_id: UUID, verdicts: Sequence[Verdict]) -> list[Settled]:
    rows = await session.rows(statement("settle"), {"worker": worker_id, **_columns(verdicts)})
    return [Settled(*row) for row in rows]


async def park(
    session: Session,
    worker_id: UUID,
    claim: Claim,
    ordinals: Sequence[int],
    *,
    upstream: str,
    task_id: str,
    delay: float,
) -> int:
    """Move items into a span that waits for the provider's task; how many were moved."""
    rows = await session.rows(
        statement("park"),
        {
            "span": claim.span_id,
            "worker": worker_id,
            "ordinals": Multirange([Range(n, n + 1) for n in sorted(ordinals)]),
            "upstream": upstream,
            "task": task_id,
            "delay": delay,
        },
    )
    return sum(size for _, size in rows)


async def release(session: Session, worker_id: UUID, claims: Sequence[Claim] | None = None) -> list[UUID]:
    """Free what the worker holds, all of it or some spans; the batches that were concerned."""
    spans = None if claims is None else [claim.span_id for claim in claims]
    rows = await session.rows(statement("release"), {"worker": worker_id, "spans": spans})
    return [batch_id for (batch_id,) in rows]


async def release_strays(session: Session, worker_id: UUID, known: Collection[int]) -> int:
    """Free the worker's spans that are not among the `known`; how many there were."""
    params = {"worker": worker_id, "known": Int8Array(sorted(known))}
    return len(await session.rows(statement("release_strays"), params))


async def poll(session: Session, worker_id: UUID, scope: Scope) -> Horizon:
    rows = await session.rows(statement("poll"), {**scope.params(), "worker": worker_id})
    return Horizon(*rows[0])


async def renew(session: Session, worker: WorkerId) -> None:
    await session.rows(statement("renew"), {"worker": worker.id, "name": worker.name, "lease": worker.lease})


async def living_workers(session: Session) -> list[tuple[UUID, str]]:
    return [(worker_id, name) for worker_id, name in await session.rows(statement("living_workers"), {})]


async def bury(session: Session, worker_id: UUID) -> None:
    """End the lease of a worker whose process is known to be dead."""
    await session.rows(statement("bury_worker"), {"worker": worker_id})


async def leave(session: Session, worker_id: UUID) -> None:
    await session.rows(statement("leave"), {"worker": worker_id})


def _columns(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """Verdicts turned from rows into columns, as settle.sql takes them."""
    spans, ordinals, line_nos, kinds, statuses = [], [], [], [], []
    inputs, cached, outputs, reasoning = [], [], [], []
    texts: list[bytes | None] = []
    codes: list[bytes | None] = []
    delays: list[float] = []
    for verdict in verdicts:
        item, usage, code, delay = verdict.item, NO_USAGE, None, 0.0
        status: int | None = None
        text: bytes | None = None
        match verdict:
            case Completed():
                kind, status, text, usage = 0, verdict.status_code, verdict.output, verdict.usage
            case Failed():
                kind, status, text = 1, verdict.status_code, verdict.output
            case Retry():
                kind, text, code, delay = 2, _text(verdict.message), _text(verdict.error_code), verdict.delay
            case Deferred():
                kind, delay = 3, verdict.delay
        spans.append(item.claim.span_id)
        ordinals.append(item.ordinal)
        line_nos.append(item.line_no)
        kinds.append(kind)
        statuses.append(status)
        inputs.append(min(usage.input_tokens, _MAX_INT))
        cached.append(min(usage.cached_tokens, _MAX_INT))
        outputs.append(min(usage.output_tokens, _MAX_INT))
        reasoning.append(min(usage.reasoning_tokens, _MAX_INT))
        texts.append(text)
        codes.append(code)
        delays.append(delay)
    return {
        "spans": Int8Array(spans),
        "distinct_spans": Int8Array(sorted(set(spans))),
        "ordinals": Int4Array(ordinals),
        "line_nos": Int4Array(line_nos),
        "kinds": Int2Array(kinds),
        "status_codes": Int2Array(statuses),
        "input_tokens": Int4Array(inputs),
        "cached_tokens": Int4Array(cached),
        "output_tokens": Int4Array(outputs),
        "reasoning_tokens": Int4Array(reasoning),
        "outputs": TextArray(texts),
        "error_codes": TextArray(codes),
        "delays": Float8Array(delays),
    }


def _text(value: str) -> bytes:
    """Text that PostgreSQL takes: it stores no NUL character."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace")
