"""Clients that order batches, and repeat the request until it is confirmed.

Half of them create batches directly, as `batchline submit` does, with an idempotency key. The others use
OpenAI's official client against `batchline serve`. Database and server may be away for a while; any other
refusal is a finding.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

import openai

from batchline.batches import creation as ordering
from batchline.batches.staging import parse_steps
from batchline.files.ingest import InputSource, ingest
from batchline.model import RunSettings, ids
from batchline.store import batches
from batchline.store.session import Session, StoreUnavailable
from chaos import inputs
from chaos.schedule import ATTEMPTS, TIMEOUT, BatchOrder

_PAUSE = 0.3
# Seconds to wait for one answer. A client repeats its order for much longer.
_ANSWER_LIMIT = 10.0
# Files with oversized answers have many megabytes.
_READ_LIMIT = 60.0
# Concurrent requests of a client that floods the server.
_FLOODING = 16

T = TypeVar("T")


@dataclass(slots=True)
class Placed:
    """An order, its batch once that exists, and what clients requested for it since."""

    order: BatchOrder
    batch_id: UUID | None = None
    made: asyncio.Event = field(default_factory=asyncio.Event)
    cancel_requested: bool = False
    # The cancellation was confirmed.
    cancelled: bool = False
    paused: bool = False
    pausing: list[asyncio.Task[bool]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Displayed:
    """An ended batch as a client of the server sees it."""

    status: str
    counts: tuple[int, int, int]
    output: bytes
    errors: bytes


class Clients:
    def __init__(self, database: str, server: str, upstream: str, starving: str) -> None:
        self._database = database
        self._upstream = upstream
        self._starving = starving
        self._openai = openai.AsyncOpenAI(
            api_key="none", base_url=f"{server}/v1", max_retries=0, timeout=_ANSWER_LIMIT
        )

    async def close(self) -> None:
        await self._openai.close()

    async def answered(self) -> None:
        """Wait until the server answers."""
        await _until_answered(self._openai.models.list)

    async def submit(self, placed: Placed) -> None:
        through = self._through_api if placed.order.through == "api" else self._through_engine
        placed.batch_id = await _until_answered(lambda: through(placed.order))
        placed.made.set()

    async def flood(self) -> None:
        """Send requests as fast as the server answers, until cancelled. Any answer is acceptable."""
        await asyncio.gather(*(self._ask_again_and_again() for _ in range(_FLOODING)))

    async def _ask_again_and_again(self) -> None:
        while True:
            try:
                await self._openai.batches.list(limit=100)
            except openai.APIError:
                await asyncio.sleep(_PAUSE)

    async def read(self, batch_id: UUID) -> Displayed:
        """Read a batch and its files from the server."""
        return await _until_answered(lambda: self._read(batch_id), _READ_LIMIT)

    async def _read(self, batch_id: UUID) -> Displayed:
        batch = await self._openai.batches.retrieve(ids.show(ids.BATCH, batch_id))
        counts = batch.request_counts
        assert counts is not None
        return Displayed(
            batch.status,
            (counts.total, counts.completed, counts.failed),
            await self._content(batch.output_file_id),
            await self._content(batch.error_file_id),
        )

    async def _content(self, file_id: str | None) -> bytes:
        return b"" if file_id is None else (await self._openai.files.content(file_id)).content

    async def cancel(self, placed: Placed) -> None:
        """Request a cancellation once. A lost answer may mean either outcome."""
        batch_id = placed.batch_id
        assert batch_id is not None
        placed.cancel_requested = True
        if placed.order.through == "api":
            done = await self._cancel_through_api(batch_id)
        else:
            done = await self._change(lambda session: batches.close(session, batch_id, "cancel"))
        placed.cancelled = placed.cancelled or done

    async def pause(self, placed: Placed) -> bool:
        batch_id = placed.batch_id
        assert batch_id is not None
        # Also if the answer is lost: the batch is resumed in any case.
        placed.paused = True
        pausing = asyncio.create_task(self._change(lambda session: batches.close(session, batch_id, "pause")))
        placed.pausing.append(pausing)
        # It is not cancelled with its caller: it could take effect after the batch was resumed.
        return await asyncio.shield(pausing)

    async def resume(self, placed: Placed) -> None:
        batch_id = placed.batch_id
        assert batch_id is not None
        if placed.pausing:
            await asyncio.wait(placed.pausing)
        await _until_answered(
            lambda: self._change_or_raise(lambda session: batches.resume(session, batch_id))
        )
        placed.paused = False

    async def _through_engine(self, order: BatchOrder) -> UUID:
        file = await ingest(
            self._database,
            [InputSource(order.name, [inputs.content(order)])],
            tenant=order.tenant,
            filename=f"{order.name}.jsonl",
        )
        async with Session(self._database, "client", timeout=_ANSWER_LIMIT) as session:
            batch = await ordering.create(
                session,
                tenant=order.tenant,
                file_id=file.id,
                window=order.window,
                settings=RunSettings(
                    upstream=self._starving if order.starving else self._upstream,
                    max_attempts=ATTEMPTS,
                    timeout=TIMEOUT,
                    steps=None if order.steps is None else parse_steps(order.steps),
                ),
                resume_key=order.name,
            )
        return batch.id

    async def _through_api(self, order: BatchOrder) -> UUID:
        file = await self._openai.files.create(
            file=(f"{order.name}.jsonl", inputs.content(order)),
            purpose="batch",
            extra_headers={"Idempotency-Key": f"file {order.name}"},
        )
        batch = await self._openai.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"order": order.name},
            extra_headers={"Idempotency-Key": f"batch {order.name}"},
            extra_body=None if order.steps is None else {"steps": order.steps, "max_failed": "100%"},
        )
        found = ids.read(ids.BATCH, batch.id)
        assert found is not None
        return found

    async def _cancel_through_api(self, batch_id: UUID) -> bool:
        try:
            batch = await self._openai.batches.cancel(ids.show(ids.BATCH, batch_id))
        except (openai.APIConnectionError, openai.InternalServerError, openai.ConflictError):
            return False
        except openai.BadRequestError:
            return False  # It has ended.
        return batch.status in ("cancelling", "cancelled")

    async def _change(self, change: Callable[[Session], Awaitable[bool]]) -> bool:
        try:
            return await self._change_or_raise(change)
        except StoreUnavailable:
            return False

    async def _change_or_raise(self, change: Callable[[Session], Awaitable[bool]]) -> bool:
        async with Session(self._database, "client", timeout=_ANSWER_LIMIT) as session:
            return await change(session)


async def _until_answered(ask: Callable[[], Awaitable[T]], limit: float = _ANSWER_LIMIT) -> T:
    while True:
        try:
            async with asyncio.timeout(limit):
                return await ask()
        except (TimeoutError, StoreUnavailable, openai.APIConnectionError, openai.InternalServerError):
            await asyncio.sleep(_PAUSE)
