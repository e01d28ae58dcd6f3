"""Reuse: a new batch takes the answers that the same lines have in earlier batches, and only those."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from batchline.batches import creation, reuse
from batchline.batches.creation import BatchRequest, create_requested
from batchline.batches.retry import retry
from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.model import DEFAULT_TENANT, Batch, BatchStatus, ProviderSettings, RetrySelection, RunSettings
from batchline.model.ids import new_id
from batchline.store import batches, deletion, doctor, files, retention, spans
from batchline.store.batches import NewBatch
from batchline.store.creation import BatchCreation
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from tests.support.builders import LATER, a_batch, a_worker, failed, finalize, read, sql, take, until
from tests.support.reuse import (
    UPSTREAM,
    a_file_of,
    a_reusing_batch,
    answer,
    answer_all,
    answered,
    answers,
)

WORKER = a_worker()
ABC = ["a", "b", "c", "d", "e"]


async def sound(db: Session) -> bool:
    return (await doctor.examine(db)).findings == ()


# What is reused


async def test_only_lines_without_an_answer_are_left(db: Session) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, ABC))
    assert await answer_all(db, WORKER, first) == [1, 2, 3, 4, 5]

    edited = await a_file_of(db, ["new", "a", "B", "c", "d", "e"], custom_ids=list("uvwxyz"))
    second = await a_reusing_batch(db, edited)

    assert (second.total, second.completed, second.reused) == (6, 4, 4)
    assert second.counts.pending == 2
    assert await sound(db)
    assert await answer_all(db, WORKER, second) == [1, 3]
    old, new = first.id.hex, second.id.hex
    assert await answers(db, second) == {
        1: ("u", f"{new} 1"),
        2: ("v", f"{old} 1"),
        3: ("w", f"{new} 3"),
        4: ("x", f"{old} 3"),
        5: ("y", f"{old} 4"),
        6: ("z", f"{old} 5"),
    }
    assert (await read(db, second)).status is BatchStatus.FINALIZING
    assert await sound(db)


async def test_tokens_of_reused_answers_are_not_spent_again(db: Session) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    second = await a_reusing_batch(db, await a_file_of(db, [*ABC, "f"]))
    await answer_all(db, WORKER, second)
    now = await read(db, second)
    assert (now.completed, now.input_tokens, now.output_tokens) == (6, 3, 5)


async def test_a_reused_line_keeps_the_id_of_the_request_that_was_sent(db: Session) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, ["a"]))
    await answer_all(db, WORKER, first)
    await a_reusing_batch(db, await a_file_of(db, ["a"], custom_ids=["other"]))
    rows = await sql(db, "SELECT output FROM batchline.results ORDER BY lane_id")
    before, after = (json.loads(output) for (output,) in rows)
    assert after == before | {"custom_id": "other"}


@pytest.mark.parametrize("custom_id", ['quote " here', "back\\slash", ',"response":', "ü €", "a\tb"])
async def test_any_custom_id_is_replaced_by_any_other(db: Session, custom_id: str) -> None:
    for custom_ids in ([custom_id], ["plain"], [custom_id]):
        batch = await a_reusing_batch(db, await a_file_of(db, ["a"], custom_ids=custom_ids))
        await answer_all(db, WORKER, batch)
        assert [name for name, _ in (await answers(db, batch)).values()] == custom_ids


async def test_the_kth_identical_line_reuses_the_kth_answer(db: Session) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, ["x", "y", "x", "x"]))
    await answer_all(db, WORKER, first)
    second = await a_reusing_batch(db, await a_file_of(db, ["x", "x", "x", "x", "y", "x"]))
    assert await answer_all(db, WORKER, second) == [4, 6]
    old, new = first.id.hex, second.id.hex
    assert [text for _, text in (await answers(db, second)).values()] == [
        *(f"{old} 1", f"{old} 3", f"{old} 4"),
        *(f"{new} 4", f"{old} 2", f"{new} 6"),
    ]


async def test_no_answer_is_used_twice_though_copies_of_it_are_in_several_batches(db: Session) -> None:
    """Of an interrupted batch, the second of two identical lines is answered; of the next, the first."""
    first = await a_reusing_batch(db, await a_file_of(db, ["x", "x"]))
    items = await take(db, WORKER, scope=Scope(None, first.id))
    await answer(db, WORKER, [item for item in items if item.line_no == 2])
    second = await a_reusing_batch(db, await a_file_of(db, ["x", "x", "other"]))
    assert second.reused == 1
    await answer(db, WORKER, [item for item in items if item.line_no == 1])
    third = await a_reusing_batch(db, await a_file_of(db, ["x", "x", "another"]))
    texts = [text for _, text in (await answers(db, third)).values()]
    assert texts == [f"{first.id.hex} 1", f"{first.id.hex} 2"]


async def test_answers_of_a_batch_that_still_runs_are_reused(db: Session) -> None:
    running = await a_reusing_batch(db, await a_file_of(db, ABC))
    await answer(db, WORKER, (await take(db, WORKER, scope=Scope(None, running.id)))[1:3])
    second = await a_reusing_batch(db, await a_file_of(db, [*ABC, "f"]))
    assert second.reused == 2
    assert await answer_all(db, WORKER, second) == [1, 4, 5, 6]


async def test_failed_lines_are_sent_again(db: Session) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, ABC))
    one, *others = await take(db, WORKER, scope=Scope(None, first.id))
    await spans.settle(db, WORKER.id, [failed(one), *map(answered, others)])
    second = await a_reusing_batch(db, await a_file_of(db, [*ABC, "f"]))
    assert await answer_all(db, WORKER, second) == [1, 6]


async def test_the_newest_answer_wins_and_older_batches_fill_the_gaps(db: Session) -> None:
    oldest = await a_reusing_batch(db, await a_file_of(db, ["a", "b"]))
    await answer_all(db, WORKER, oldest)
    newest = await a_batch(db, file_id=await a_file_of(db, ["b", "c"]), upstream=UPSTREAM)
    await answer_all(db, WORKER, newest)
    third = await a_reusing_batch(db, await a_file_of(db, ["a", "b", "c"]))
    assert [text for _, text in (await answers(db, third)).values()] == [
        *(f"{oldest.id.hex} 1", f"{newest.id.hex} 1", f"{newest.id.hex} 2")
    ]


async def test_a_line_is_reused_through_a_chain_of_batches_after_the_first_is_deleted(db: Session) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, ABC))
    await answer_all(db, WORKER, first)
    second = await a_reusing_batch(db, await a_file_of(db, [*ABC, "f"]))
    await answer_all(db, WORKER, second)
    await finalize(db, WORKER, first)
    assert await deletion.delete(db, first.id, force=False) is not None
    third = await a_reusing_batch(db, await a_file_of(db, [*ABC, "f", "g"]))
    assert (third.reused, await answer_all(db, WORKER, third)) == (6, [7])


async def test_each_model_of_a_file_reuses_only_its_own_answers(db: Session) -> None:
    models = ("small", "large")
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ["a", "b"], models=models)))
    second = await a_reusing_batch(db, await a_file_of(db, ["b", "b", "a"], models=models))
    # "a" and "b" were answered by small and large; now small has "b" and "a", and large has "b".
    assert await answer_all(db, WORKER, second) == [1]


async def test_v1_at_the_end_of_the_upstream_makes_no_difference(db: Session) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    other = RunSettings(upstream=UPSTREAM.removesuffix("/v1") + "/")
    assert (await a_reusing_batch(db, await a_file_of(db, ABC), settings=other)).reused == 5


# What is not


async def test_nothing_crosses_from_one_tenant_to_another(db: Session) -> None:
    theirs = await a_reusing_batch(db, await a_file_of(db, ABC, tenant="theirs"), tenant="theirs")
    await answer_all(db, WORKER, theirs)
    assert (await a_reusing_batch(db, await a_file_of(db, ABC, tenant="ours"), tenant="ours")).reused == 0
    assert (await a_reusing_batch(db, await a_file_of(db, ABC, tenant="theirs"), tenant="theirs")).reused == 5


@pytest.mark.parametrize(
    ("settings", "model", "url"),
    [
        (RunSettings(upstream="http://other.example/v1"), "model", "/v1/chat/completions"),
        (RunSettings(), "model", "/v1/chat/completions"),
        (
            RunSettings(upstream=UPSTREAM, provider=ProviderSettings("openai-background")),
            "model",
            "/v1/chat/completions",
        ),
        (RunSettings(upstream=UPSTREAM), "other", "/v1/chat/completions"),
        (RunSettings(upstream=UPSTREAM), "model", "/v1/completions"),
    ],
)
async def test_another_upstream_model_endpoint_or_a_provider_reuses_nothing(
    db: Session, settings: RunSettings, model: str, url: str
) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    file_id = await a_file_of(db, ABC, models=(model,), url=url)
    assert (await a_reusing_batch(db, file_id, settings=settings)).reused == 0


async def test_answers_of_a_provider_are_not_reused(db: Session) -> None:
    provider = RunSettings(upstream=UPSTREAM, provider=ProviderSettings("openai-background"))
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC), settings=provider))
    assert (await a_reusing_batch(db, await a_file_of(db, ABC))).reused == 0


async def a_batch_of_the_server(db: Session, bodies: list[str], *upstreams: UpstreamSettings) -> Batch:
    """As POST /v1/batches with `reuse` creates it, with these upstreams in batchline.toml."""
    requested = BatchRequest(
        DEFAULT_TENANT,
        await a_file_of(db, bodies),
        "/v1/chat/completions",
        "24h",
        reuse=True,
        upstream_for=ServerSettings(upstreams=upstreams).upstream_for if upstreams else None,
    )
    return await create_requested(db, requested)


GPU = UpstreamSettings("gpu", "http://gpu.example/v1", models=("model",))
ANY = UpstreamSettings("any", "http://any.example/v1")
PROVIDER = UpstreamSettings("gpu", "http://gpu.example/v1", models=("model",), provider="openai-background")


@pytest.mark.parametrize(
    ("before", "after", "reused"),
    [
        ((GPU, ANY), (ANY, GPU), 5),
        ((GPU, ANY), (ANY,), 0),
        ((GPU,), (PROVIDER,), 0),
        ((PROVIDER,), (GPU,), 0),
        ((PROVIDER,), (PROVIDER,), 0),
        ((GPU,), (), 0),
        ((), (), 5),
    ],
    ids=["same", "moved", "to a provider", "from a provider", "provider", "unknown", "none"],
)
async def test_a_batch_of_the_server_reuses_answers_of_the_upstream_that_serves_its_model_now(
    db: Session, before: tuple[UpstreamSettings, ...], after: tuple[UpstreamSettings, ...], reused: int
) -> None:
    await answer_all(db, WORKER, await a_batch_of_the_server(db, ABC, *before))
    assert (await a_batch_of_the_server(db, [*ABC, "f"], *after)).reused == reused


async def test_a_batch_of_the_server_reuses_answers_of_a_batch_that_names_the_same_upstream(
    db: Session,
) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    same = UpstreamSettings("same", "http://model.example")
    assert (await a_batch_of_the_server(db, [*ABC, "f"], same)).reused == 5


async def deleted(db: Session, batch: Batch) -> None:
    assert await deletion.delete(db, batch.id, force=False) is not None


async def purging(db: Session, batch: Batch) -> None:
    await sql(db, "UPDATE batchline.batches SET purging_at = now() WHERE id = %(batch)s", batch=batch.id)


async def without_output_file(db: Session, batch: Batch) -> None:
    output = (await read(db, batch)).output_file_id
    assert output is not None
    assert await files.delete(db, batch.tenant, output)


async def without_input_file(db: Session, batch: Batch) -> None:
    assert await files.delete(db, batch.tenant, batch.file_id)


@pytest.mark.parametrize("lost", [deleted, purging, without_output_file, without_input_file])
async def test_deleted_answers_are_never_reused(
    db: Session, lost: Callable[[Session, Batch], Awaitable[None]]
) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, ABC))
    await answer_all(db, WORKER, first)
    await finalize(db, WORKER, first)
    # Hashed, as after any earlier reuse.
    assert (await a_reusing_batch(db, await a_file_of(db, ABC), settings=RunSettings(UPSTREAM))).reused == 5
    await sql(db, "DELETE FROM batchline.batches WHERE id <> %(batch)s", batch=first.id)

    await lost(db, first)

    assert (await a_reusing_batch(db, await a_file_of(db, ABC))).reused == 0


async def test_a_retry_does_not_bring_deleted_answers_back(db: Session) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, [*ABC, "fails"]))
    *others, last = await take(db, WORKER)
    await answer(db, WORKER, others)
    await spans.settle(db, WORKER.id, [failed(last)])
    await finalize(db, WORKER, first)
    await without_output_file(db, first)

    await retry(db, first, RetrySelection())
    assert (await a_reusing_batch(db, await a_file_of(db, ABC))).reused == 0

    # They are in the new output, which is not deleted.
    await answer_all(db, WORKER, first)
    await finalize(db, WORKER, first)
    assert (await a_reusing_batch(db, await a_file_of(db, ABC))).reused == 5


async def test_answers_are_reused_while_their_batch_is_retried(db: Session) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, [*ABC, "fails"]))
    *others, last = await take(db, WORKER)
    await answer(db, WORKER, others)
    await spans.settle(db, WORKER.id, [failed(last)])
    await finalize(db, WORKER, first)
    await retry(db, first, RetrySelection())
    assert (await a_reusing_batch(db, await a_file_of(db, ABC))).reused == 5


async def test_the_hashes_of_a_file_are_deleted_with_its_lines(db: Session) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, ABC))
    await answer_all(db, WORKER, first)
    await a_reusing_batch(db, first.file_id)
    await sql(db, "DELETE FROM batchline.batches")
    assert await sql(db, "SELECT count(*) FROM batchline.line_hashes") == [(1,)]
    assert await files.delete(db, first.tenant, first.file_id)
    for file in await retention.deleted_files(db, None):
        while await retention.drop_lines(db, file):
            pass
    assert await sql(db, "SELECT count(*) FROM batchline.line_hashes") == [(0,)]


async def test_a_file_is_not_hashed_while_there_is_nothing_to_reuse(db: Session) -> None:
    await a_reusing_batch(db, await a_file_of(db, ABC))
    await a_reusing_batch(db, await a_file_of(db, ABC))
    assert await sql(db, "SELECT count(*) FROM batchline.line_hashes") == [(0,)]


# What is left to do


async def test_a_batch_whose_lines_are_all_reused_is_frozen_and_announced(db: Session) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    async with db.open_ended() as connection:
        await connection.execute("LISTEN batchline")
    second = await a_reusing_batch(db, await a_file_of(db, list(reversed(ABC))))
    assert (second.status, second.completed) == (BatchStatus.FINALIZING, 5)
    async with db.open_ended() as connection:
        heard = [each.payload async for each in connection.notifies(timeout=30, stop_after=2)]
    assert f"closed {second.id}" in heard
    ended = await finalize(db, WORKER, second)
    assert ended.status is BatchStatus.COMPLETED
    assert await sound(db)


async def test_lines_behind_the_last_reused_one_stay_pending_without_a_row(db: Session) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ["a", "b"])))
    second = await a_reusing_batch(db, await a_file_of(db, ["x", "a", "b", *(f"n{n}" for n in range(50))]))
    rows = await sql(db, "SELECT outstanding::text FROM batchline.spans WHERE batch_id = %(b)s", b=second.id)
    assert rows == [("{[0,1)}",)]
    lane = "SELECT next, drained FROM batchline.lanes WHERE batch_id = %(b)s"
    assert await sql(db, lane, b=second.id) == [(3, False)]
    assert len(await answer_all(db, WORKER, second)) == 51
    assert await sound(db)


async def test_alternating_lines_are_in_spans_that_one_claim_takes_whole(db: Session) -> None:
    await answer_all(
        db, WORKER, await a_reusing_batch(db, await a_file_of(db, [f"{n}" for n in range(4000)]))
    )
    edited = [f"{n}" if n % 2 else f"new {n}" for n in range(4000)]
    second = await a_reusing_batch(db, await a_file_of(db, edited))
    sizes = await sql(
        db,
        "SELECT batchline.span_size(outstanding) FROM batchline.spans WHERE batch_id = %(b)s ORDER BY id",
        b=second.id,
    )
    assert sizes == [(500,)] * 4
    assert await answer_all(db, WORKER, second) == [n + 1 for n in range(0, 4000, 2)]
    assert await sound(db)


async def test_a_cancelled_batch_keeps_its_reused_answers(db: Session) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    second = await a_reusing_batch(db, await a_file_of(db, ["new", *ABC, "last"]))
    assert await batches.close(db, second.id, "cancel")
    now = await read(db, second)
    assert (now.counts.completed, now.counts.cancelled) == (5, 2)
    assert (await finalize(db, WORKER, second)).status is BatchStatus.CANCELLED
    assert await sound(db)


# Concurrency


async def test_of_two_runs_at_once_with_one_key_one_creates_the_batch(db: Session, database_url: str) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    file_id = await a_file_of(db, [*ABC, "f"])
    async with Session(database_url, "left") as left, Session(database_url, "right") as right:
        made = await asyncio.gather(
            *(a_reusing_batch(each, file_id, resume_key="the key") for each in (left, right))
        )
    assert made[0].id == made[1].id
    assert made[0].reused == made[1].reused == 5
    assert await sql(db, "SELECT count(*) FROM batchline.results WHERE attempt = 0") == [(5,)]
    assert await sound(db)


async def test_two_different_runs_at_once_both_reuse(db: Session, database_url: str) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    edits = [await a_file_of(db, [*ABC, extra]) for extra in ("f", "g")]
    async with Session(database_url, "left") as left, Session(database_url, "right") as right:
        one, two = await asyncio.gather(a_reusing_batch(left, edits[0]), a_reusing_batch(right, edits[1]))
    assert (one.reused, two.reused) == (5, 5)
    assert await sound(db)


@pytest.mark.parametrize("lost", [deleted, purging, without_output_file, without_input_file])
async def test_answers_that_are_deleted_after_the_list_of_batches_was_read_are_not_reused(
    db: Session, database_url: str, lost: Callable[[Session, Batch], Awaitable[None]]
) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, ABC))
    await answer_all(db, WORKER, first)
    await finalize(db, WORKER, first)
    file_id = await a_file_of(db, [*ABC, "f"])
    async with Session(database_url, "reuse") as reusing, Session(database_url, "lock") as locking:
        async with locking.transaction() as connection:
            # Copying waits for this. The deletion does not touch results.
            await connection.execute("LOCK TABLE batchline.results IN SHARE MODE")
            creating = asyncio.create_task(a_reusing_batch(reusing, file_id))
            waiting = (
                "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'batchline.results'::regclass"
            )
            await until(lambda: sql(db, waiting))
            await lost(db, first)
        assert (await creating).reused == 0


# Cost


async def sources(db: Session, file_id: UUID, upstream: str = UPSTREAM) -> list[UUID]:
    """The batches that a batch over the file would read, in this order."""
    rows = await sql(
        db,
        """
        SELECT s.batch_id
        FROM batchline.files AS f
        CROSS JOIN LATERAL batchline.reuse_sources_v1(
            f.tenant, f.no, jsonb_build_object('upstream', %(upstream)s::text), NULL
        ) AS s
        WHERE f.id = %(file)s
        ORDER BY s.nth
        """,
        file=file_id,
        upstream=upstream,
    )
    return [batch_id for (batch_id,) in rows]


async def test_of_many_runs_over_one_file_none_is_read_that_is_older_than_a_complete_one(db: Session) -> None:
    file_id = await a_file_of(db, ABC)
    old, complete, new = [await a_batch(db, file_id=file_id, upstream=UPSTREAM) for _ in range(3)]
    await answer_all(db, WORKER, old)
    await answer_all(db, WORKER, complete)
    await answer(db, WORKER, (await take(db, WORKER, 2, Scope(batch_id=new.id))))
    for each in (old, complete):
        await finalize(db, WORKER, each)
    assert await sources(db, await a_file_of(db, [*ABC, "f"])) == [new.id, complete.id]


async def test_the_lines_that_are_read_of_earlier_batches_are_bounded(db: Session) -> None:
    made = []
    for _ in range(4):
        batch = await a_batch(db, file_id=await a_file_of(db, ABC), upstream=UPSTREAM)
        await answer_all(db, WORKER, batch)
        made.append(batch.id)
    await sql(db, "UPDATE batchline.lanes SET total = 4000000")
    file_id = await a_file_of(db, ABC)
    newest = made[::-1]
    assert await sources(db, file_id) == newest[:3]
    await sql(db, "UPDATE batchline.files SET line_count = 1000000 WHERE id = %(file)s", file=file_id)
    assert await sources(db, file_id) == newest


async def test_preparing_hashes_the_newest_files_up_to_a_limit_and_the_next_time_more(db: Session) -> None:
    for first in ("a", "b", "c"):
        batch = await a_batch(db, file_id=await a_file_of(db, [first, first + first]), upstream=UPSTREAM)
        await answer_all(db, WORKER, batch)
    settings = RunSettings(upstream=UPSTREAM)
    for reused in (["c"], ["b", "c"], ["a", "b", "c"]):
        file_id = await a_file_of(db, ["a", "b", "c", "d"])
        plan = await reuse.plan(db, DEFAULT_TENANT, file_id, settings)
        await reuse.prepare(db, plan, max_lines=1)
        batch = await creation.create(
            db, tenant=DEFAULT_TENANT, file_id=file_id, window="1h", settings=settings, plan=plan
        )
        found = sorted("abcd"[no - 1] for no in await answers(db, batch))
        assert found == reused
        await sql(db, "DELETE FROM batchline.batches WHERE id = %(batch)s", batch=batch.id)


OTHERS = """
    WITH
    file AS (
        INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count)
        SELECT gen_random_uuid(), 'other', 'batch', 'x', 0, 1 FROM generate_series(1, 100)
        RETURNING id, no
    ),
    hash AS (
        INSERT INTO batchline.line_hashes (file_no, lane_no, part, hashes, proofs, ordinals, line_nos)
        SELECT no, 0, 0, '{1}', '{1}', '{0}', '{1}' FROM file
    ),
    batch AS (
        INSERT INTO batchline.batches
            (id, tenant, file_id, completion_window, settings, total, completed, in_progress_at)
        SELECT gen_random_uuid(), 'other', file.id, '24h', b.settings, 1, 1, now()
        FROM file, batchline.batches AS b
        RETURNING id, file_id
    )
    INSERT INTO batchline.lanes
        (batch_id, tenant, key, deadline, file_no, lane_no, model, url, total, next, drained)
    SELECT batch.id, 'other', 'k', now(), file.no, 0, n.model, n.url, 1, 1, true
    FROM batch
    JOIN file ON file.id = batch.file_id
    CROSS JOIN batchline.lanes AS n
"""


async def test_no_batches_files_and_hashes_of_others_are_read(db: Session, database_url: str) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    await sql(db, OTHERS)
    file_id = await a_file_of(db, [*ABC, "f"])
    settings = RunSettings(upstream=UPSTREAM)
    await reuse.prepare(db, await reuse.plan(db, DEFAULT_TENANT, file_id, settings))
    new = NewBatch(new_id(), DEFAULT_TENANT, file_id, "24h", LATER, settings)
    async with Session(database_url, "reuse") as session, session.transaction() as connection:
        made = BatchCreation(connection, new)
        await made.create()
        assert (await made.reuse()).reused == 5
        cursor = await connection.execute(
            "SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
            " WHERE relname IN ('batches', 'lanes', 'files', 'line_hashes')"
        )
        fetched: dict[str, int] = dict(await cursor.fetchall())
        assert max(fetched.values()) < 100, fetched


async def test_a_connection_that_is_lost_in_the_middle_leaves_nothing(db: Session, database_url: str) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    file_id = await a_file_of(db, [*ABC, "f"])
    async with (
        Session(database_url, "lost") as lost,
        Session(database_url, "lock") as locking,
        locking.transaction() as connection,
    ):
        # Copying waits for this.
        await connection.execute("LOCK TABLE batchline.results IN SHARE MODE")
        creating = asyncio.create_task(a_reusing_batch(lost, file_id))
        waiting = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'batchline.results'::regclass"
        await until(lambda: sql(db, waiting))
        await sql(db, f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS w")
        with pytest.raises(StoreUnavailable):
            await creating
    assert await sql(db, "SELECT count(*) FROM batchline.batches") == [(1,)]
    assert await sql(db, "SELECT count(*) FROM batchline.results") == [(5,)]
    assert (await a_reusing_batch(db, file_id)).reused == 5
    assert await sound(db)


async def test_the_doctor_finds_a_wrong_count_of_reused_answers(db: Session) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ABC)))
    second = await a_reusing_batch(db, await a_file_of(db, [*ABC, "f"]))
    await sql(db, "UPDATE batchline.batches SET reused = 4 WHERE id = %(b)s", b=second.id)
    (finding,) = (await doctor.examine(db)).findings
    assert finding.check == "reused"
