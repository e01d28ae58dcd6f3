"""What becomes of a chunk when the provider's answers are lost, late or contradictory: no line runs twice."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal
from uuid import UUID

import pytest

from batchline.model import Recovery, RelaySettings
from batchline.simulate.http import ReceivedRequest
from batchline.store import batches
from batchline.store.session import Session
from batchline.worker.relay.relay import Relay
from batchline.worker.worker import Worker
from tests.support.builders import read, sql, until
from tests.support.relay_provider import a_relayed_batch, relayed, relaying
from tests.support.scripted_batches import ScriptedBatches, answered, scripted_batches

KEY = "secret-key"
NO_ANSWER = (504, b"{}")
EMPTY_LIST = (200, b'{"data": [], "has_more": false}')
UNKNOWN = (404, b'{"error": {"message": "no such batch"}}')


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


def relay_of(worker: Worker) -> Relay:
    (relay,) = worker.relays
    return relay


async def test_resubmit_submits_again_once_and_not_at_once(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    creations = []

    def script(line: str, _: ReceivedRequest) -> tuple[int, bytes]:
        creations.append(line)
        return NO_ANSWER

    async def due_again(worker: Worker) -> None:
        await sql(
            db,
            "UPDATE batchline.provider_chunks SET due_at = now(), creating_at = now() - interval '301 s'",
        )
        worker.relays.wake()

    async with scripted_batches(all_answered) as provider:
        provider.script = script
        settings = relayed(provider.url, RelaySettings(api="anthropic", recovery=Recovery.RESUBMIT))
        await a_relayed_batch(db, 5, settings)
        await sql(db, "UPDATE batchline.lanes SET url = '/v1/messages'")
        async with relaying(database_url, tmp_path, settings, KEY) as worker:
            await until(found(db, "s.submission = 'unknown'"))
            assert len(creations) == 1
            await due_again(worker)
            await until(found(db, "c.resubmissions = 1 AND s.submission = 'unknown'"))
            assert len(creations) == 2
            await sql(db, "UPDATE batchline.provider_chunks SET error = ''")
            await due_again(worker)
            await until(found(db, "strpos(c.error, 'submitted again once') > 0 AND s.submission = 'unknown'"))
            assert len(creations) == 2


async def test_a_cancel_that_is_refused_because_the_batch_has_ended(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status = "in_progress"

        def script(line: str, _: ReceivedRequest) -> tuple[int, bytes] | None:
            if not line.endswith("/cancel"):
                return None
            provider.status = "completed"
            return 409, b'{"error": {"message": "it has ended"}}'

        provider.script = script
        settings = relayed(provider.url, RelaySettings(recheck=0.1))
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY):
            await until(found(db, "c.state = 'submitted'"))
            await batches.close(db, batch.id, "cancel")

            async def ended() -> bool:
                return (await read(db, batch)).ended_at is not None

            await until(ended)
    assert (await read(db, batch)).completed == 5


class LateList:
    """A provider that accepts a creation without an answer, and lists it only when `listed` is set."""

    def __init__(self, provider: ScriptedBatches) -> None:
        self.provider = provider
        self.listed = False
        self.searches = 0
        provider.script = self.script

    def script(self, line: str, request: ReceivedRequest) -> tuple[int, bytes] | None:
        if line == "POST /v1/batches":
            self.provider.accept(request)
            return NO_ANSWER
        if line == "GET /v1/batches":
            self.searches += 1
            return None if self.listed else EMPTY_LIST
        return None


async def searched_once(db: Session, worker: Worker) -> None:
    await until(found(db, "c.state = 'creating'"))

    async def searched() -> bool:
        for (batch,) in await sql(db, "SELECT id FROM batchline.batches"):
            worker.relays.closed(batch)
        return await found(db, "c.searched_at IS NOT NULL")()

    await until(searched)


async def rests(worker: Worker) -> None:
    """Its chunk waits."""

    async def resting() -> bool:
        return worker.relays.holding and relay_of(worker).idle.is_set()

    await until(resting)


async def second_search(db: Session, worker: Worker) -> None:
    await sql(db, "UPDATE batchline.provider_chunks SET searched_at = now() - interval '2 hours'")
    for (batch,) in await sql(db, "SELECT id FROM batchline.batches"):
        worker.relays.closed(batch)
    await until(found(db, "c.state <> 'creating'"))


async def test_a_restart_does_not_shorten_the_time_between_searches(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        late = LateList(provider)
        settings = relayed(provider.url, RelaySettings(recheck=3600.0))
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY) as worker:
            await searched_once(db, worker)
        async with relaying(database_url, tmp_path, settings, KEY) as worker:
            await rests(worker)
            assert (late.searches, len(provider.batches)) == (1, 1)
            late.listed = True
            await second_search(db, worker)

            async def ended() -> bool:
                return (await read(db, batch)).ended_at is not None

            await until(ended)
        assert len(provider.batches) == 1
    assert (await read(db, batch)).completed == 5


@pytest.mark.parametrize("how", ["pause", "cancel"])
async def test_a_batch_that_is_closed_waits_for_the_second_search(
    db: Session, database_url: str, tmp_path: Path, how: Literal["pause", "cancel"]
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status = "in_progress"
        late = LateList(provider)
        settings = relayed(provider.url, RelaySettings(recheck=3600.0))
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY) as worker:
            await searched_once(db, worker)
            await rests(worker)
            await batches.close(db, batch.id, how)
            worker.relays.closed(batch.id)
            await rests(worker)
            assert (late.searches, len(provider.batches)) == (1, 1)
            late.listed = True
            await second_search(db, worker)
            if how == "cancel":

                async def cancelled() -> bool:
                    return provider.cancelled == ["batch-0"]

                await until(cancelled)
        assert len(provider.batches) == 1


async def test_a_refusal_of_a_line_that_was_not_sent_uses_attempts(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status, provider.errors = "failed", [{"code": "invalid_json", "line": 0, "message": "bad"}]
        settings = relayed(provider.url, RelaySettings(recheck=0.1), max_attempts=2)
        batch = await a_relayed_batch(db, 3, settings)
        async with relaying(database_url, tmp_path, settings, KEY):

            async def ended() -> bool:
                await sql(
                    db, "UPDATE batchline.spans SET available_at = now() WHERE available_at < '9000-01-01'"
                )
                return (await read(db, batch)).ended_at is not None

            await until(ended)
        assert len(provider.batches) == 2
    assert (await read(db, batch)).failed == 3


async def test_a_batch_that_is_unknown_now_and_then_goes_on(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    polls = 0
    async with scripted_batches(all_answered) as provider:
        provider.status = "in_progress"
        vanished = False

        def script(line: str, _: ReceivedRequest) -> tuple[int, bytes] | None:
            nonlocal polls
            if not line.startswith("GET /v1/batches/"):
                return None
            polls += 1
            return UNKNOWN if vanished or polls % 2 == 0 else None

        provider.script = script
        settings = relayed(provider.url, RelaySettings(recheck=0.01))
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY) as worker:

            async def polled() -> bool:
                worker.relays.closed(batch.id)
                return polls >= 16

            await until(polled)
            assert await found(db, "c.state = 'submitted' AND s.submission IS NULL")()
            vanished = True
            worker.relays.closed(batch.id)
            await until(found(db, "s.submission = 'unknown'"))
        assert len(provider.batches) == 1
    assert await sql(db, "SELECT 1 FROM batchline.retry_attempts") == []


async def test_a_refused_batch_is_not_taken_for_a_later_creation(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    full = {"code": "token_limit_exceeded", "message": "full"}
    keys: list[str] = []
    async with scripted_batches(all_answered) as provider:
        provider.status, provider.errors = "failed", [full]

        def script(line: str, request: ReceivedRequest) -> tuple[int, bytes] | None:
            if line == "POST /v1/batches":
                keys.append(str(request.key))
                accepted = provider.accept(request)
                return NO_ANSWER if len(keys) == 2 else accepted
            if line == "GET /v1/batches" and not listed:
                return 200, b'{"data": [{"id": "batch-0", "input_file_id": "file-0"}], "has_more": false}'
            return None

        listed = False
        provider.script = script
        settings = relayed(provider.url, RelaySettings(recheck=3600.0))
        batch = await a_relayed_batch(db, 3, settings)
        async with relaying(database_url, tmp_path, settings, KEY) as worker:
            await until(found(db, "c.state = 'uploaded' AND c.error = 'full'"))
            provider.status = "completed"
            await rests(worker)
            worker.relays.closed(batch.id)
            await searched_once(db, worker)
            await rests(worker)
            listed = True
            await second_search(db, worker)
            await until(found(db, "c.state = 'done'"))
        assert len(provider.batches) == 2
    assert await sql(db, "SELECT provider_batch FROM batchline.provider_chunks") == [("batch-1",)]
    assert len(set(keys)) == 2


async def test_what_was_submitted_is_collected_after_the_settings_stop_using_the_batch_api(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status = "in_progress"
        settings = relayed(provider.url)
        batch = await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY):
            await until(found(db, "c.state = 'submitted'"))
        provider.status = "completed"

        async with relaying(database_url, tmp_path, settings, KEY, collect_only=True):
            await until(lambda: _ended(db, batch.id))

        assert (await read(db, batch.id)).counts.completed == 5
        assert (len(provider.batches), provider.direct_requests) == (1, 0)


async def test_a_relay_takes_over_no_chunk_of_another_provider(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with scripted_batches(all_answered) as provider:
        provider.status = "in_progress"
        settings = relayed(provider.url)
        await a_relayed_batch(db, 5, settings)
        async with relaying(database_url, tmp_path, settings, KEY):
            await until(found(db, "c.state = 'submitted'"))
        await sql(db, "UPDATE batchline.provider_chunks SET base_url = 'http://elsewhere', due_at = now()")
        before = len(provider.arrived)

        async with relaying(database_url, tmp_path, settings, KEY, drain=True) as worker:
            assert [each.lines for each in worker.held] == [5]

        assert len(provider.arrived) == before


async def _ended(db: Session, batch_id: UUID) -> bool:
    return (await read(db, batch_id)).ended_at is not None
