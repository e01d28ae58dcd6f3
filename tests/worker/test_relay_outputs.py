"""Outputs that are wrong, refusals, and cancels: a provider whose every answer the test decides."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from batchline.model import Batch, RelaySettings, RunSettings, Via
from batchline.store import batches, provider_chunks
from batchline.store.provider_chunks import ListedChunk
from batchline.store.session import Session
from tests.support.builders import read, sql, until
from tests.support.relay_provider import a_relayed_batch, relayed, relaying
from tests.support.scripted_batches import ScriptedBatches, answered, scripted_batches, without_answer

KEY = "secret-key"
RELAY = RelaySettings(recheck=0.1)


def all_answered(keys: Sequence[str]) -> str:
    return "".join(answered(key) + "\n" for key in keys)


async def ended(db: Session, batch: Batch) -> Batch:
    async def has_ended() -> bool:
        # Lines that are sent again wait for half a minute.
        await sql(db, "UPDATE batchline.spans SET available_at = now() WHERE available_at < '9000-01-01'")
        return (await read(db, batch)).ended_at is not None

    await until(has_ended)
    return await read(db, batch)


async def run(
    db: Session,
    url: str,
    folder: Path,
    provider: ScriptedBatches,
    lines: int,
    settings: RunSettings | None = None,
) -> tuple[Batch, list[ListedChunk]]:
    settings = settings or relayed(provider.url, RELAY)
    batch = await a_relayed_batch(db, lines, settings)
    async with relaying(url, folder, settings, KEY):
        found = await ended(db, batch)
    return found, await provider_chunks.listed(db, batch.id)


async def test_outputs_of_no_line_and_second_outputs_do_not_count(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    def outputs(keys: Sequence[str]) -> str:
        chunk = keys[0].rpartition("-")[0]
        strange = [answered(key) for key in ("q-1", f"{chunk}-99", f"{'0' * 32}-0", f"{chunk}--1", keys[0])]
        return all_answered(keys) + "\n".join(strange)

    async with scripted_batches(outputs) as provider:
        batch, chunks = await run(db, database_url, tmp_path, provider, 5)
    assert (batch.completed, batch.failed) == (5, 0)
    assert [(each.state, each.unknown, each.doubled, each.missing) for each in chunks] == [("done", 4, 1, 0)]


async def test_lines_without_an_output_are_sent_again(db: Session, database_url: str, tmp_path: Path) -> None:
    async with scripted_batches(lambda keys: all_answered(keys[1:] if len(keys) > 2 else keys)) as provider:
        batch, chunks = await run(db, database_url, tmp_path, provider, 5)
        assert (batch.completed, batch.failed) == (5, 0)
        assert [len(keys) for keys in provider.files.values()] == [5, 1]
    assert [(each.attempt, each.lines, each.missing) for each in chunks] == [(2, 1, 0), (1, 5, 1)]
    attempts = await sql(db, "SELECT error_code, attempt FROM batchline.retry_attempts")
    assert attempts == [("missing_output", 1)]


async def test_only_lines_that_failed_for_a_while_are_sent_again(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    def outputs(keys: Sequence[str]) -> str:
        if len(keys) < 4:
            return all_answered(keys)
        kinds = [answered(keys[0], 400), answered(keys[1], 503), without_answer(keys[2], "batch_expired")]
        return "\n".join([*kinds, all_answered(keys[3:])])

    async with scripted_batches(outputs) as provider:
        batch, _ = await run(db, database_url, tmp_path, provider, 5)
        assert (batch.completed, batch.failed) == (4, 1)
        assert [len(keys) for keys in provider.files.values()] == [5, 2]
    attempts = await sql(db, "SELECT error_code FROM batchline.retry_attempts ORDER BY ordinal")
    assert attempts == [("http_503",), ("batch_expired",)]


async def test_outputs_that_cannot_be_read_count_as_missing(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    def outputs(keys: Sequence[str]) -> str:
        return all_answered(keys) if len(keys) < 3 else "not JSON\n[1]\n" + all_answered(keys[1:])

    async with scripted_batches(outputs) as provider:
        batch, chunks = await run(db, database_url, tmp_path, provider, 4)
    assert (batch.completed, batch.failed) == (4, 0)
    assert [each.unreadable for each in chunks] == [0, 2]


async def test_an_output_that_is_too_long_fails_its_line_alone(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    def outputs(keys: Sequence[str]) -> str:
        long = answered(keys[0]).replace('"r"', '"' + "r" * 200_000 + '"')
        return long + "\n" + all_answered(keys[1:])

    async with scripted_batches(outputs) as provider:
        settings = relayed(provider.url, RELAY)
        batch = await a_relayed_batch(db, 3, settings)
        async with relaying(database_url, tmp_path, settings, KEY, max_line=100_000):
            found = await ended(db, batch)
    assert (found.completed, found.failed) == (2, 1)
    (line,) = await sql(db, "SELECT output FROM batchline.results WHERE outcome = 'failed'")
    assert '"response_too_large"' in line[0]


async def test_a_provider_that_refuses_lines_fails_only_these(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status, provider.errors = "failed", [{"code": "invalid_json", "line": 2, "message": "bad"}]
        settings = relayed(provider.url, RELAY)
        batch = await a_relayed_batch(db, 3, settings)
        async with relaying(database_url, tmp_path, settings, KEY):

            async def second_submission() -> bool:
                return len(provider.batches) > 1

            await until(second_submission)
            provider.status = "completed"
            found = await ended(db, batch)
        assert [len(keys) for keys in provider.files.values()][:2] == [3, 2]
    assert (found.completed, found.failed) == (2, 1)


async def test_a_cancelled_batch_keeps_what_the_provider_has_finished(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(lambda keys: all_answered(keys[:2])) as provider:
        provider.status = "in_progress"
        settings = relayed(provider.url, RELAY)
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY):
            await until(_submitted(db))
            await batches.close(db, batch.id, "cancel")
            found = await ended(db, batch)
        assert provider.cancelled == ["batch-0"]
    assert (found.completed, found.cancelled_at is not None) == (2, True)


async def test_auto_sends_the_rest_directly_before_the_deadline(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(lambda keys: all_answered(keys[:2])) as provider:
        provider.status = "in_progress"
        auto = RelaySettings(via=Via.AUTO, window=60.0, fallback=30.0, recheck=0.1)
        settings = relayed(provider.url, auto)
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY):
            await until(_submitted(db))
            await sql(db, "UPDATE batchline.lanes SET deadline = now() + interval '25 seconds'")
            found = await ended(db, batch)
        assert provider.cancelled == ["batch-0"]
        assert provider.direct_requests == 3
    assert (found.completed, found.failed) == (5, 0)


def _submitted(db: Session) -> Callable[[], Awaitable[object]]:
    async def found() -> bool:
        rows = await sql(db, "SELECT id FROM batchline.provider_chunks WHERE state = 'submitted'")
        return bool(rows)

    return found
