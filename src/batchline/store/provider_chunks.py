"""Chunks of lines that a provider's batch API works on: form, take, advance, end, release."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from batchline.model import Claim, Item, RunSettings
from batchline.store.arrays import Int4Array, Int8Array
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from batchline.store.statements import statement

# How the task ids of spans begin that belong to a chunk. form_chunk_v1.sql writes it.
TASK = "chunk:"


def chunk_of(task_id: str) -> UUID:
    return UUID(task_id.removeprefix(TASK))


class ChunkLimits(msgspec.Struct, frozen=True):
    """What one chunk may have, and all open chunks of an upstream. `overhead`: bytes per line beyond its
    body."""

    max_lines: int
    max_bytes: int
    overhead: int
    max_chunks: int
    max_tokens: int | None
    tokens_per_byte: float


class ChunkTarget(msgspec.Struct, frozen=True):
    """The API that chunks are formed for, and where it is."""

    base_url: str
    api: str


class HeldChunk(msgspec.Struct, frozen=True):
    """A chunk that this worker holds. `claim` is of its span, without a task: verdicts are on its items."""

    id: UUID
    claim: Claim


class ChunkState(msgspec.Struct, frozen=True):
    """A chunk as it stands. Times are in seconds: `created_at` since 1970, `age` since it was submitted."""

    id: UUID
    batch_id: UUID
    lane_id: int
    span_id: int
    upstream: str
    state: str
    # First and last ordinals of its ranges.
    ordinals: tuple[tuple[int, int], ...]
    lines: int
    bytes: int
    file_id: str | None
    provider_batch: str | None
    searches: int
    cancelling: bool
    # Batches over it that the provider has refused as a whole.
    refused: tuple[str, ...]
    # How often it was submitted again without knowing what became of the submission before.
    resubmissions: int
    # Since its creation began, and since the provider was first searched for it in vain.
    creating_for: float | None
    searched_ago: float | None
    created_at: float
    age: float | None
    seconds_left: float
    closing: bool
    closing_for: float | None
    paused: bool


class Advance(msgspec.Struct, frozen=True):
    """What is known of a chunk in its next state. None: as before."""

    state: str
    file_id: str | None = None
    provider_batch: str | None = None
    outcome: str | None = None
    searches: int | None = None
    cancelling: bool | None = None
    error: str | None = None
    resubmissions: int | None = None
    # The provider has refused its batch as a whole.
    refused: bool = False


class MergeCounts(msgspec.Struct):
    """What was wrong with a chunk's outputs."""

    # Lines without an output, outputs of no line of the chunk, second outputs, and outputs that are not JSON.
    missing: int = 0
    unknown: int = 0
    doubled: int = 0
    unreadable: int = 0


class LeftChunk(msgspec.Struct, frozen=True):
    """A chunk of which only the provider's files are left."""

    id: UUID
    file_id: str | None
    provider_batch: str | None


class OpenChunks(msgspec.Struct, frozen=True):
    """Chunks of one routing key and API that are not done."""

    key: str
    target: ChunkTarget
    chunks: int
    lines: int


class LostChunk(msgspec.Struct, frozen=True):
    """A chunk whose batch has ended without it. Times are as in ChunkState."""

    id: UUID
    state: str
    file_id: str | None
    provider_batch: str | None
    refused: tuple[str, ...]
    creating_for: float | None
    created_at: float
    target: ChunkTarget


class ListedChunk(msgspec.Struct, frozen=True):
    """A chunk as people see it. `held`: the provider may have accepted it, and the operator has to decide.
    `waited`: for so many seconds it was due, and no worker has taken it."""

    id: UUID
    state: str
    attempt: int
    lines: int
    bytes: int
    provider_batch: str | None
    outcome: str | None
    missing: int
    unknown: int
    doubled: int
    unreadable: int
    error: str | None
    created_at: datetime
    submitted_at: datetime | None
    ended_at: datetime | None
    held: bool
    upstream: str
    base_url: str
    api: str
    waited: float | None


class FullProvider(msgspec.Struct, frozen=True):
    """Open chunks of a routing key, of all batches, which leave no room for another."""

    key: str
    chunks: int
    max_chunks: int
    tokens: int
    max_tokens: int | None


async def form(
    session: Session,
    worker_id: UUID,
    chunk: UUID,
    claims: Sequence[Claim],
    limits: ChunkLimits,
    target: ChunkTarget,
) -> HeldChunk | None:
    """Make a chunk of claimed lines of one lane, batch and attempt. None: there is no room for it."""
    first = claims[0]
    params = {
        "worker": worker_id,
        "spans": Int8Array([claim.span_id for claim in claims]),
        "chunk": chunk,
        "key": first.key,
        **msgspec.structs.asdict(limits),
        **msgspec.structs.asdict(target),
    }
    rows = await session.rows(statement("form_chunk"), params)
    if not rows:
        return None
    span_id, lines, _ = rows[0]
    return HeldChunk(
        chunk, msgspec.structs.replace(first, span_id=span_id, size=lines, task_id=None, submission=None)
    )


async def take(
    session: Session, worker: WorkerId, scope: Scope, target: ChunkTarget, max_chunks: int
) -> list[HeldChunk]:
    """Chunks for this API that no live worker holds and that are due."""
    params = {
        **scope.params(),
        **msgspec.structs.asdict(target),
        "worker": worker.id,
        "name": worker.name,
        "lease": worker.lease,
        "max_chunks": max_chunks,
    }
    rows = await session.rows(statement("take_chunks"), params)
    return [HeldChunk(chunk, _claim(*of)) for chunk, *of in rows]


def _claim(
    span_id: int,
    lane_id: int,
    batch_id: UUID,
    attempt: int,
    size: int,
    url: str,
    model: str,
    key: str,
    seconds_left: float,
    settings: object,
    lease_left: float,
    attempts_before: int,
) -> Claim:
    return Claim(
        span_id=span_id,
        lane_id=lane_id,
        batch_id=batch_id,
        attempt=attempt,
        task_id=None,
        size=size,
        url=url,
        model=model,
        key=key,
        seconds_left=seconds_left,
        settings=msgspec.convert(settings, RunSettings),
        lease_left=lease_left,
        attempts_before=attempts_before,
    )


async def read(session: Session, worker_id: UUID, chunk: UUID) -> ChunkState | None:
    """None: this worker does not hold it any more."""
    rows = await session.rows(statement("read_chunk"), {"worker": worker_id, "chunk": chunk})
    if not rows:
        return None
    values = list(rows[0])
    values[6] = tuple((piece.lower, piece.upper - 1) for piece in values[6])
    values[13] = tuple(values[13])
    return ChunkState(*values)


async def advance(session: Session, worker_id: UUID, of: ChunkState, to: Advance) -> bool:
    """Record the next state. False: this worker does not hold the chunk in that state any more."""
    params = {
        "worker": worker_id,
        "chunk": of.id,
        "span": of.span_id,
        "before": of.state,
        "state": to.state,
        "file": to.file_id,
        "provider_batch": to.provider_batch,
        "outcome": to.outcome,
        "searches": to.searches,
        "cancelling": to.cancelling,
        "error": to.error,
        "resubmissions": to.resubmissions,
        "refused": to.refused,
    }
    return bool(await session.rows(statement("advance_chunk"), params))


async def name(session: Session, chunk: UUID, provider_batch: str) -> None:
    """Note the provider's name of a chunk whose span has gone since its creation began."""
    await session.rows(statement("name_chunk"), {"chunk": chunk, "provider_batch": provider_batch})


async def end(session: Session, chunk: UUID, counts: MergeCounts, error: str | None = None) -> bool:
    """Mark a chunk as done, if all its lines have a verdict."""
    params = {"chunk": chunk, **msgspec.structs.asdict(counts), "error": error}
    return bool(await session.rows(statement("end_chunk"), params))


async def ordinals(session: Session, worker_id: UUID, span_id: int) -> list[tuple[int, int]]:
    """First and last ordinals of the lines that have no verdict yet."""
    rows = await session.rows(statement("chunk_ordinals"), {"worker": worker_id, "span": span_id})
    return [(first, last) for first, last in rows]


async def lines(session: Session, claim: Claim, some: Sequence[int], *, bodies: bool) -> list[Item]:
    """Those of these lines that have no verdict yet, in this order."""
    params = {"span": claim.span_id, "ordinals": Int4Array(some), "bodies": bodies}
    return [Item(claim, *row) for row in await session.raw_rows(statement("chunk_lines"), params)]


async def release(
    session: Session,
    worker_id: UUID,
    chunk: UUID,
    *,
    delay: float,
    held: bool,
    error: str | None = None,
) -> list[UUID]:
    """Give up a chunk for so many seconds; the batch that was concerned."""
    params = {"worker": worker_id, "chunk": chunk, "delay": delay, "held": held, "error": error}
    return [batch_id for (batch_id,) in await session.rows(statement("release_chunk"), params)]


async def open_keys(session: Session, scope: Scope) -> list[OpenChunks]:
    """What providers have of each routing key in the scope."""
    rows = await session.rows(statement("open_chunks"), scope.params())
    return [
        OpenChunks(key, ChunkTarget(url, api), chunks, int(lines)) for key, url, api, chunks, lines in rows
    ]


async def left(session: Session, scope: Scope, target: ChunkTarget) -> list[LeftChunk]:
    params = {**scope.params(), **msgspec.structs.asdict(target)}
    return [LeftChunk(*row) for row in await session.rows(statement("left_chunks"), params)]


async def abandoned(session: Session, chunk: UUID) -> LostChunk | None:
    """A chunk whose batch has ended without it; None: nothing is to be cancelled at its provider."""
    rows = await session.rows(statement("abandoned_chunk"), {"chunk": chunk})
    if not rows:
        return None
    state, file_id, provider_batch, refused, creating_for, created_at, *target = rows[0]
    return LostChunk(
        chunk, state, file_id, provider_batch, tuple(refused), creating_for, created_at, ChunkTarget(*target)
    )


async def forget(session: Session, chunk: UUID) -> None:
    await session.rows(statement("forget_chunk"), {"chunk": chunk})


async def listed(session: Session, batch_id: UUID, limit: int = 100) -> list[ListedChunk]:
    """The chunks of a batch, the newest first."""
    rows = await session.rows(statement("list_chunks"), {"batch": batch_id, "limit": limit})
    return [ListedChunk(*row) for row in rows]


async def full(session: Session, batch_id: UUID) -> list[FullProvider]:
    """Where lines of a batch wait for room at a provider."""
    rows = await session.rows(statement("full_providers"), {"batch": batch_id})
    return [FullProvider(*row) for row in rows]
