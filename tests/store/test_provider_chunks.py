"""Chunks for providers beside ordinary claims: their lines use no slots, and wait for a relay."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from batchline.model import Claim
from batchline.model.ids import new_id
from batchline.store import arrays, doctor
from batchline.store.session import Session
from tests.support import scenes
from tests.support.builders import a_batch, sql
from tests.support.scenes import Hand, Stage, Staged


@pytest.fixture(scope="module")
def stage_url(server_url: str, template: str) -> Iterator[str]:
    with scenes.database(server_url, template) as url:
        yield url


@pytest.fixture
def stage(stage_url: str) -> Iterator[Stage]:
    with Stage(stage_url) as stage:
        stage.db.execute("DELETE FROM batchline.provider_chunks; DELETE FROM batchline.abandoned_tasks")
        yield stage


def with_lines(stage: Stage, batch: Staged) -> Staged:
    """The lines of a batch, which the stage does not make."""
    stage.db.execute(
        """
        INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
        SELECT n.file_no, n.lane_no, g, g + 1, g::text, '{}'
        FROM batchline.lanes AS n
        CROSS JOIN generate_series(0, n.total - 1) AS g
        WHERE n.id = ANY (%s)
        ON CONFLICT DO NOTHING
        """,
        [list(batch.lanes)],
    )
    return batch


def form(hand: Hand, claims: Sequence[Claim], **limits: Any) -> tuple[UUID, list[tuple[Any, ...]]]:
    """A chunk of claimed lines, and what form_chunk returns."""
    chunk = new_id()
    params: dict[str, Any] = {
        "worker": hand.id,
        "spans": arrays.Int8Array([claim.span_id for claim in claims]),
        "chunk": chunk,
        "key": claims[0].key,
        "max_lines": 50_000,
        "max_bytes": 10**9,
        "overhead": 10,
        "max_chunks": 8,
        "max_tokens": None,
        "tokens_per_byte": 0.3,
        "base_url": "http://relay",
        "api": "openai",
    }
    return chunk, hand.run("form_chunk", params | limits)


def test_lines_in_a_chunk_are_not_in_flight_when_tenants_share(stage: Stage) -> None:
    with_lines(stage, stage.batch(500, tenant="relayed", keys=("relay",)))
    relay, worker = stage.hand(), stage.hand()
    form(relay, relay.claim(500, keys=["relay"]))
    for tenant in ("relayed", "other"):
        stage.batch(1_000, tenant=tenant, keys=("direct",))

    claims = worker.claim(100, keys=["direct"])

    assert {claim.tenant: claim.size for claim in claims} == {"relayed": 50, "other": 50}


def test_the_chunk_of_a_lost_relay_does_not_keep_fresh_lines_of_later_batches_back(stage: Stage) -> None:
    with_lines(stage, stage.batch(490, keys=("k",), seconds=3000))
    relay, worker = stage.hand(), stage.hand()
    form(relay, relay.claim(490, keys=["k"]))
    stage.batch(50, keys=("k",), seconds=3600)
    stage.lease(relay.id, -10)

    assert [claim.size for claim in worker.claim(100, keys=["k"])] == [50]


@pytest.mark.parametrize("of_batch", [False, True])
def test_the_chunk_of_a_lost_relay_costs_a_claim_no_line_of_its_batch(stage: Stage, of_batch: bool) -> None:
    batch = with_lines(stage, stage.batch(500, keys=("k",)))
    relay, worker = stage.hand(), stage.hand()
    form(relay, relay.claim(100, keys=["k"]))
    stage.lease(relay.id, -10)

    claims = worker.claim(100, batch=batch.id) if of_batch else worker.claim(100, keys=["k"])

    assert [claim.size for claim in claims] == [100]


def test_a_chunk_is_measured_without_sorting_the_bodies(stage: Stage) -> None:
    batch = with_lines(stage, stage.batch(2_000, keys=("k",)))
    stage.db.execute(
        "UPDATE batchline.lines SET body = repeat(md5(ordinal::text), 45) WHERE (file_no, lane_no) IN"
        " (SELECT file_no, lane_no FROM batchline.lanes WHERE id = %s)",
        batch.lanes,
    )
    relay = stage.hand()
    (claim,) = relay.claim(2_000, keys=["k"])
    relay.connection.execute("SET work_mem = '1MB'")

    cursor = relay.connection.execute(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM batchline.form_chunk_v1("
        "%s, %s, %s, 'k', 2000, 1000000000, 10, 8, NULL, 0.3)",
        [relay.id, [claim.span_id], new_id()],
    )

    row = cursor.fetchone()
    assert row is not None
    assert row[0][0]["Plan"]["Actual Rows"] == 1
    assert row[0][0]["Plan"]["Temp Written Blocks"] == 0


def test_a_chunk_is_formed_only_in_transactions_that_see_what_others_commit(stage: Stage) -> None:
    with_lines(stage, stage.batch(5, keys=("k",)))
    relay = stage.hand()
    claims = relay.claim(5, keys=["k"])
    relay.connection.execute("SET default_transaction_isolation = 'repeatable read'")

    with pytest.raises(psycopg.Error, match=r"(?i)read committed"):
        form(relay, claims)


def _attempts(stage: Stage, batch: Staged) -> int:
    ((attempts,),) = stage.rows("SELECT count(*) FROM batchline.retry_attempts WHERE batch_id = %s", batch.id)
    return int(attempts)


@pytest.mark.parametrize(
    ("state", "attempts"), [("prepared", 0), ("uploaded", 0), ("creating", 5), ("submitted", 5)]
)
def test_the_end_of_a_batch_ends_attempts_only_of_chunks_that_were_submitted(
    stage: Stage, state: str, attempts: int
) -> None:
    batch = with_lines(stage, stage.batch(5, keys=("k",)))
    relay = stage.hand()
    chunk, _ = form(relay, relay.claim(5, keys=["k"]))
    stage.db.execute("UPDATE batchline.provider_chunks SET state = %s WHERE id = %s", [state, chunk])
    stage.lease(relay.id, -10)

    relay.close(batch.id, "cancel")

    assert relay.conclude(batch.id)
    assert _attempts(stage, batch) == attempts
    # The provider may have its file.
    assert stage.rows("SELECT task_id FROM batchline.abandoned_tasks") == [(f"chunk:{chunk}",)]


def test_a_deleted_batch_leaves_no_chunk_that_is_done(stage: Stage) -> None:
    batch = with_lines(stage, stage.batch(10, keys=("k",)))
    relay = stage.hand()
    done, _ = form(relay, relay.claim(5, keys=["k"]))
    under_way, _ = form(relay, relay.claim(5, keys=["k"]))
    stage.db.execute("UPDATE batchline.provider_chunks SET state = 'done' WHERE id = %s", [done])

    assert relay.delete(batch.id)

    assert stage.rows("SELECT id FROM batchline.provider_chunks") == [(under_way,)]


def test_views_show_no_time_of_a_free_chunk_and_that_one_is_held(stage: Stage) -> None:
    batch = with_lines(stage, stage.batch(1, keys=("k",)))
    relay = stage.hand()
    chunk, _ = form(relay, relay.claim(1, keys=["k"]))
    seen = "SELECT state, not_before FROM batchline.{} WHERE batch_id = %s"

    relay.run(
        "release_chunk", {"worker": relay.id, "chunk": chunk, "held": True, "delay": 1.0, "error": None}
    )

    assert stage.rows(seen.format("requests"), batch.id) == [("processing", None)]
    assert stage.rows(seen.format("provider_items"), batch.id) == [("submission_unknown", None)]


def test_views_show_a_chunk_that_waits_for_its_provider_as_processing(stage: Stage) -> None:
    batch = with_lines(stage, stage.batch(1, keys=("k",)))
    relay = stage.hand()
    form(relay, relay.claim(1, keys=["k"]))

    relay.release()

    rows = stage.rows("SELECT state, not_before FROM batchline.provider_items WHERE batch_id = %s", batch.id)
    assert rows == [("processing", None)]


async def test_the_doctor_notes_a_chunk_without_lines(db: Session) -> None:
    await a_batch(db, 1)
    await sql(
        db,
        """
        INSERT INTO batchline.provider_chunks
            (id, batch_id, lane_id, span_id, upstream, state, attempt, ordinals, lines, bytes, tokens)
        SELECT gen_random_uuid(), batch_id, id, 999, 'relay', state, 1, '{[0,1)}', 1, 1, 1
        FROM batchline.lanes
        CROSS JOIN unnest('{submitted,done}'::text[]) AS state
        """,
    )

    report = await doctor.examine(db)

    assert report.clean
    assert [note.check for note in report.notes] == ["chunk_left"]


def test_the_chunk_of_a_lost_relay_makes_no_lane_one_with_lines_to_claim_again(stage: Stage) -> None:
    """A tenant that has nothing else would take part in the sharing."""
    with_lines(stage, stage.batch(5, keys=("k",)))
    relay = stage.hand()
    form(relay, relay.claim(5, keys=["k"]))

    found = "SELECT * FROM batchline.returned_lanes_v2(NULL, '{}', NULL, NULL, ARRAY[%s]::uuid[])"

    assert stage.rows(found, relay.id) == []


@pytest.mark.parametrize(
    ("limits", "full"),
    [({"max_chunks": 1}, True), ({"max_tokens": 18}, True), ({"max_chunks": 2, "max_tokens": 10**6}, False)],
)
def test_lines_wait_for_room_while_chunks_fill_a_limit(
    stage: Stage, limits: dict[str, int], full: bool
) -> None:
    with_lines(stage, stage.batch(5, keys=("k",)))
    waiting = with_lines(stage, stage.batch(5, keys=("k",)))
    elsewhere = stage.batch(5, keys=("other",))
    relay = stage.hand()
    _, formed = form(relay, relay.claim(5, keys=["k"]), **limits)
    assert formed

    assert bool(relay.run("full_providers", {"batch": waiting.id})) == full
    assert not relay.run("full_providers", {"batch": elsewhere.id})


def test_the_doctor_finds_a_chunk_that_no_worker_takes(stage: Stage) -> None:
    batch = with_lines(stage, stage.batch(5, keys=("k",)))
    relay = stage.hand()
    form(relay, relay.claim(5, keys=["k"]))
    params = {"batch": None, "max_findings": 10}
    assert not relay.run("doctor_chunks", params)

    stage.lease(relay.id, -121)

    ((name, _, of, _, message),) = relay.run("doctor_chunks", params)
    assert (name, of) == ("chunk_unserved", batch.id)
    assert "http://relay" in message
    ((*_, waited),) = relay.run("list_chunks", {"batch": batch.id, "limit": 10})
    assert waited > 120
