"""Chunks whose worker stops, whose batch ends or is paused, and lines that are sent directly."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from batchline.batches import deletion
from batchline.config.settings import WorkerSettings
from batchline.executors.http import HttpExecutor
from batchline.files.objects import Objects
from batchline.model import RELAYED, Batch, Claim, Item, RelaySettings, Via
from batchline.simulate.http import ReceivedRequest
from batchline.store import batches, provider_chunks
from batchline.store.provider_chunks import Advance, ChunkState
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import read, sql, until
from tests.support.relay_provider import KEY as KEY_NAME
from tests.support.relay_provider import a_relayed_batch, relayed, relaying
from tests.support.scripted_batches import ScriptedBatches, answered, scripted_batches

KEY = "secret-key"
REFUSED = (401, b'{"error": {"message": "wrong key"}}')


def all_answered(keys: Sequence[str]) -> str:
    return "".join(answered(key) + "\n" for key in keys)


def found(db: Session, condition: str) -> Callable[[], Awaitable[bool]]:
    """Whether there is a chunk with this condition; its span is `s`."""

    async def look() -> bool:
        return bool(
            await sql(
                db,
                "SELECT c.id FROM batchline.provider_chunks AS c LEFT JOIN batchline.spans AS s"
                f" ON s.id = c.span_id WHERE {condition}",
            )
        )

    return look


def has_ended(db: Session, batch: Batch) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await read(db, batch)).ended_at is not None

    return look


async def a_message_batch(db: Session, provider: ScriptedBatches) -> Any:
    """Settings for a batch of five messages."""
    provider.script = message_batches
    settings = relayed(provider.url, RelaySettings(api="anthropic"))
    await a_relayed_batch(db, 5, settings)
    await sql(db, "UPDATE batchline.lanes SET url = '/v1/messages'")
    return settings


def message_batches(line: str, _: ReceivedRequest) -> tuple[int, bytes]:
    """Accepts all, and works on it without end."""
    return 200, b'{"id": "msgbatch_1", "processing_status": "in_progress"}'


async def test_an_answer_that_cannot_be_recorded_at_once_is_kept(
    db: Session, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, advance = 0, provider_chunks.advance

    async def with_a_failure(session: Session, worker: Any, of: ChunkState, to: Advance) -> bool:
        nonlocal failures
        if to.state == "submitted" and not failures:
            failures += 1
            raise StoreUnavailable("the database restarts")
        return await advance(session, worker, of, to)

    monkeypatch.setattr(provider_chunks, "advance", with_a_failure)
    async with scripted_batches(all_answered) as provider:
        settings = await a_message_batch(db, provider)
        async with relaying(database_url, tmp_path, settings, KEY):
            await until(found(db, "c.state = 'submitted' OR s.submission = 'unknown'"))
        assert await found(db, "c.provider_batch = 'msgbatch_1'")()
    assert failures == 1


async def test_a_message_batch_without_all_its_lines_was_not_submitted(
    db: Session, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, lines = 0, provider_chunks.lines

    async def with_a_failure(
        session: Session, claim: Claim, some: Sequence[int], *, bodies: bool
    ) -> list[Item]:
        nonlocal failures
        if bodies and not failures:
            failures += 1
            raise StoreUnavailable("the database restarts")
        return await lines(session, claim, some, bodies=bodies)

    monkeypatch.setattr(provider_chunks, "lines", with_a_failure)
    async with scripted_batches(all_answered) as provider:
        settings = await a_message_batch(db, provider)
        async with relaying(database_url, tmp_path, settings, KEY):
            await until(found(db, "c.state = 'submitted' OR s.submission = 'unknown'"))
        assert await found(db, "c.provider_batch = 'msgbatch_1'")()
    assert failures == 1


async def test_a_worker_that_stops_waits_for_the_answer_to_a_creation(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        answer = provider.waits["POST /v1/messages/batches"] = asyncio.Event()
        settings = await a_message_batch(db, provider)
        async with relaying(database_url, tmp_path, settings, KEY):

            async def arrived() -> bool:
                return "POST /v1/messages/batches" in provider.arrived

            await until(arrived)
            asyncio.get_running_loop().call_later(0.5, answer.set)
        assert await found(db, "c.state = 'submitted' AND c.provider_batch = 'msgbatch_1'")()


async def test_a_cancelled_batch_does_not_wait_for_a_provider_that_refuses(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status = "in_progress"
        provider.script = lambda line, _: REFUSED if line.endswith("/cancel") else None
        settings = relayed(provider.url)
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY) as worker:
            await until(found(db, "c.state = 'submitted'"))
            await batches.close(db, batch.id, "cancel")
            await sql(db, "UPDATE batchline.batches SET cancelling_at = now() - interval '10 minutes'")

            async def ended() -> bool:
                worker.relays.closed(batch.id)
                return (await read(db, batch)).ended_at is not None

            await until(ended)
    assert await found(db, "c.state = 'submitted' AND s.id IS NULL")()
    assert len(await sql(db, "SELECT task_id FROM batchline.abandoned_tasks")) == 1


async def test_a_batch_that_is_deleted_while_its_chunk_is_created_is_cancelled_there(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status = "in_progress"
        answer = provider.waits["POST /v1/batches"] = asyncio.Event()
        settings = relayed(provider.url, RelaySettings(recheck=3600.0))
        batch = await a_relayed_batch(db, 3, settings)
        async with relaying(database_url, tmp_path, settings, KEY):

            async def arrived() -> bool:
                return "POST /v1/batches" in provider.arrived

            await until(arrived)
            await deletion.delete(db, Objects.at(tmp_path), await read(db, batch), force=True)

            async def searched() -> bool:
                return "GET /v1/batches" in provider.arrived

            await until(searched)
            assert await found(db, "c.state = 'creating'")()
            answer.set()
            await until(found(db, "c.state = 'submitted' AND c.provider_batch = 'batch-0'"))
            await sql(db, "UPDATE batchline.abandoned_tasks SET available_at = now()")
        async with relaying(database_url, tmp_path, settings, KEY, drain=True):
            pass
        assert provider.cancelled == ["batch-0"]


async def test_any_worker_cancels_the_chunks_of_a_run_that_is_over(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status = "in_progress"
        settings = relayed(provider.url)
        batch = await a_relayed_batch(db, 5, settings)
        await sql(db, "UPDATE batchline.lanes SET key = %(before)s || key", before=RELAYED)
        async with relaying(database_url, tmp_path, settings, KEY, batch=batch):
            await until(found(db, "c.state = 'submitted'"))
        await batches.close(db, batch.id, "cancel")
        await batches.conclude(db, batch.id)
        upstreams = Upstreams(environ={KEY_NAME: KEY})
        executor = HttpExecutor(upstreams)
        scope, options = Scope(excluded_prefixes=(RELAYED,)), WorkerOptions(upstreams=upstreams)
        drained = WorkerSettings(drain=True)
        await Worker(database_url, executor, Objects.at(tmp_path), drained, scope, options).run()
        await executor.close()
        assert provider.cancelled == ["batch-0"]
    assert await found(db, "c.state = 'done'")()


async def test_a_chunk_of_a_batch_that_has_ended_takes_no_room(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status = "in_progress"
        provider.script = lambda line, _: REFUSED if line.endswith("/cancel") else None
        settings = relayed(provider.url, RelaySettings(max_chunks=1))
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY, batch=batch):
            await until(found(db, "c.state = 'submitted'"))
        other = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY, batch=other) as worker:

            async def no_room() -> bool:
                return "room" in (worker.relays.trouble or "")

            await until(no_room)
        await batches.close(db, batch.id, "cancel")
        await batches.conclude(db, batch.id)
        provider.status = "completed"
        async with relaying(database_url, tmp_path, settings, KEY, batch=other):
            await until(has_ended(db, other))
    assert (await read(db, other)).completed == 5


async def test_producers_of_lines_that_are_sent_directly_are_closed(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        settings = relayed(provider.url, RelaySettings(via=Via.AUTO))
        async with relaying(database_url, tmp_path, settings, KEY) as worker:
            for _ in range(4):
                batch = await a_relayed_batch(db, 2, settings)
                await sql(db, "UPDATE batchline.lanes SET deadline = now() + interval '1 hour'")
                worker.relays.wake()
                await until(has_ended(db, batch))

            async def closed() -> bool:
                return len(worker.producers) == 0

            await until(closed)
        assert provider.direct_requests == 8


async def test_the_concurrency_of_a_batch_does_not_limit_its_chunks(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        settings = relayed(provider.url)
        batch = await a_relayed_batch(db, 200, settings)
        await sql(db, "UPDATE batchline.lanes SET concurrency = 3")
        await sql(db, "UPDATE batchline.batches SET concurrency = 3")
        async with relaying(database_url, tmp_path, settings, KEY):
            await until(has_ended(db, batch))
    assert await sql(db, "SELECT lines FROM batchline.provider_chunks") == [(200,)]


async def test_a_paused_batch_submits_nothing(db: Session, database_url: str, tmp_path: Path) -> None:
    async with scripted_batches(all_answered) as provider:
        answer = provider.waits["POST /v1/files"] = asyncio.Event()
        settings = relayed(provider.url)
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY):

            async def arrived() -> bool:
                return "POST /v1/files" in provider.arrived

            await until(arrived)
            await batches.close(db, batch.id, "pause")
            answer.set()
            await until(found(db, "c.state = 'done'"))
            assert provider.batches == []
            await batches.resume(db, batch.id)
            await until(has_ended(db, batch))
    assert (await read(db, batch)).completed == 5


async def test_a_drained_worker_leaves_lines_behind_held_chunks(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.script = lambda line, _: (504, b"{}")
        settings = relayed(provider.url, RelaySettings(api="anthropic", max_lines=5, max_chunks=1))
        await a_relayed_batch(db, 8, settings)
        await sql(db, "UPDATE batchline.lanes SET url = '/v1/messages'")
        async with relaying(database_url, tmp_path, settings, KEY, drain=True) as worker:
            pass
    assert [(each.lines, each.limit_full) for each in worker.held] == [(5, True)]


async def test_a_drained_worker_reports_chunks_that_no_upstream_serves(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status = "in_progress"
        settings = relayed(provider.url)
        await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY):
            await until(found(db, "c.state = 'submitted'"))
        upstreams = Upstreams(environ={KEY_NAME: KEY})
        executor = HttpExecutor(upstreams)
        options, drained = WorkerOptions(upstreams=upstreams), WorkerSettings(drain=True)
        worker = Worker(database_url, executor, Objects.at(tmp_path), drained, Scope(), options)
        await worker.run()
        await executor.close()
    assert [(each.lines, each.limit_full) for each in worker.held] == [(5, False)]
