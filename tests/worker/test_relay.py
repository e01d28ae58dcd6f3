"""Lines go through the batch API of Batchline's own server: chunks, retries, cancels, and two workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchline.batches import deletion
from batchline.files.objects import Objects
from batchline.model import Batch, Recovery, RelaySettings
from batchline.store.session import Session
from tests.support.builders import read, sql, until
from tests.support.lossy_proxy import lossy_proxy
from tests.support.processes import Upstream, simulated
from tests.support.relay_provider import OpenAIProvider, a_relayed_batch, openai_provider, relayed, relaying
from tests.support.scripted_batches import answered, scripted_batches


@pytest.fixture(scope="module")
def provider(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenAIProvider]:
    with openai_provider(server_url, template, tmp_path_factory.mktemp("provider")) as found:
        yield found


async def ended(db: Session, batch: Batch) -> Batch:
    async def has_ended() -> bool:
        return (await read(db, batch)).ended_at is not None

    await until(has_ended)
    return await read(db, batch)


async def test_a_batch_ends_through_the_providers_batches(
    db: Session, database_url: str, tmp_path: Path, provider: OpenAIProvider
) -> None:
    settings = relayed(provider.url, RelaySettings(max_lines=40, recheck=1.0))
    batch = await a_relayed_batch(db, 100, settings)
    before = provider.executions()
    async with relaying(database_url, tmp_path, settings, provider.key):
        found = await ended(db, batch)
    assert (found.completed, found.failed) == (100, 0)
    assert provider.executions() - before == 100
    chunks = await sql(db, "SELECT lines, state, missing FROM batchline.provider_chunks ORDER BY lines")
    assert chunks == [(20, "done", 0), (40, "done", 0), (40, "done", 0)]


REQUESTS = (
    "POST /v1/files",
    "POST /v1/batches",
    "GET /v1/batches/[^/]+",
    "GET /v1/files/[^/]+/content",
)


@pytest.mark.parametrize("request_line", REQUESTS)
async def test_a_lost_answer_submits_nothing_twice(
    db: Session, database_url: str, tmp_path: Path, provider: OpenAIProvider, request_line: str
) -> None:
    ran, accepted = provider.executions(), len(provider.chunks())
    async with lossy_proxy(provider.url) as proxy:
        proxy.lose(request_line)
        settings = relayed(proxy.url, RelaySettings(recheck=0.5))
        batch = await a_relayed_batch(db, 20, settings)
        async with relaying(database_url, tmp_path, settings, provider.key):
            found = await ended(db, batch)
        assert len(proxy.lost) == 1
    assert (found.completed, found.failed) == (20, 0)
    assert (provider.executions() - ran, len(provider.chunks()) - accepted) == (20, 1)


async def test_two_workers_share_chunks_and_submit_each_once(
    db: Session, database_url: str, tmp_path: Path, provider: OpenAIProvider
) -> None:
    ran, accepted = provider.executions(), len(provider.chunks())
    settings = relayed(provider.url, RelaySettings(max_lines=10, max_chunks=3, recheck=1.0))
    batch = await a_relayed_batch(db, 60, settings)
    async with (
        relaying(database_url, tmp_path, settings, provider.key) as one,
        relaying(database_url, tmp_path, settings, provider.key) as other,
    ):

        async def woken() -> bool:
            # One worker does not hear when a chunk of the other has made room.
            one.relays.wake()
            other.relays.wake()
            return (await read(db, batch)).ended_at is not None

        await until(woken)
    found = await read(db, batch)
    assert (found.completed, found.failed) == (60, 0)
    assert (provider.executions() - ran, len(provider.chunks()) - accepted) == (60, 6)


async def test_a_message_batch_without_an_answer_is_held_until_the_operator_decides(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    with simulated("--task", "100") as upstream:
        await held_until_resubmitted(db, database_url, tmp_path, upstream)


async def held_until_resubmitted(db: Session, database_url: str, tmp_path: Path, upstream: Upstream) -> None:
    hold = RelaySettings(api="anthropic")
    async with lossy_proxy(upstream.url) as proxy:
        proxy.lose("POST /v1/messages/batches")
        settings = relayed(proxy.url, hold)
        batch = await a_relayed_batch(db, 8, settings)
        await sql(db, "UPDATE batchline.lanes SET url = '/v1/messages'")
        async with relaying(database_url, tmp_path, settings, "key", drain=True) as worker:
            pass
        assert [(each.lines, each.limit_full) for each in worker.held] == [(8, False)]
        assert upstream.stats()["message_batches"]["batches"] == 1
        await sql(
            db,
            "UPDATE batchline.provider_chunks SET due_at = now(), creating_at = now() - interval '301 s'",
        )
        settings = relayed(proxy.url, RelaySettings(api="anthropic", recovery=Recovery.RESUBMIT))
        async with relaying(database_url, tmp_path, settings, "key"):
            found = await ended(db, batch)
        assert (found.completed, found.failed) == (8, 0)
        assert upstream.stats()["message_batches"]["batches"] == 2


async def test_results_of_message_batches_are_told_apart(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    with simulated("--task", "100") as upstream:
        settings = relayed(upstream.url, RelaySettings(api="anthropic", recheck=0.5), max_attempts=1)
        batch = await a_relayed_batch(db, 4, settings)
        await sql(db, "UPDATE batchline.lanes SET url = '/v1/messages'")
        marks = "'{hi,<<errored>>,<<overloaded>>,<<expired>>}'::text[]"
        await sql(
            db,
            "UPDATE batchline.lines SET body = jsonb_build_object('model', 'claude', 'messages',"
            f" ({marks})[ordinal + 1])::text",
        )
        async with relaying(database_url, tmp_path, settings, "key"):
            found = await ended(db, batch)
        assert (found.completed, found.failed) == (1, 3)
        assert (found.input_tokens, found.output_tokens) == (7, 3)
    codes = await sql(
        db,
        "SELECT coalesce(output::jsonb #>> '{error,code}', output::jsonb #>> '{response,status_code}')"
        " FROM batchline.results ORDER BY ordinal",
    )
    assert codes == [("200",), ("400",), ("overloaded_error",), ("batch_expired",)]


async def test_lines_wait_while_the_upstream_has_no_batch_api(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    with simulated() as upstream:
        settings = relayed(upstream.url, RelaySettings(recheck=0.5), max_attempts=1)
        batch = await a_relayed_batch(db, 4, settings)
        async with relaying(database_url, tmp_path, settings, "key"):

            async def refused_twice() -> bool:
                return int(upstream.stats()["by_status"].get("404", 0)) >= 2

            await until(refused_twice)
    found = await read(db, batch)
    assert (found.completed, found.failed) == (0, 0)
    assert await sql(db, "SELECT count(*) FROM batchline.retry_attempts") == [(0,)]


async def test_a_deleted_batch_is_cancelled_at_the_provider(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(lambda keys: "\n".join(map(answered, keys))) as provider:
        provider.status = "in_progress"
        settings = relayed(provider.url)
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, "key"):

            async def submitted() -> bool:
                rows = await sql(db, "SELECT id FROM batchline.provider_chunks WHERE state = 'submitted'")
                return bool(rows)

            await until(submitted)
            await deletion.delete(db, Objects.at(tmp_path), await read(db, batch), force=True)

            async def cancelled() -> bool:
                return "batch-0" in provider.cancelled

            await until(cancelled)

            async def forgotten() -> bool:
                return await sql(db, "SELECT id FROM batchline.provider_chunks") == []

            await until(forgotten)
