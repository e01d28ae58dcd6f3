"""Failures are counted by cause: in step with the results, whoever settles, and whatever upstreams say."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from batchline.batches.pauses import pause_reason
from batchline.batches.retry import retry as retry_lines
from batchline.model import Batch, CauseCount, Failed, Item, Retried, RetrySelection, RunSettings, Verdict
from batchline.model.failure import MAX_MESSAGE, cause, cause_of_line
from batchline.model.ids import new_id
from batchline.store import batches, doctor, failures, retention, spans
from batchline.store.batches import NewBatch
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support import scenes
from tests.support.builders import (
    LATER,
    a_batch,
    a_file,
    a_worker,
    completed,
    finalize,
    pass_time,
    read,
    sql,
    take,
)
from tests.support.reuse import a_file_of, a_reusing_batch, answer_all
from tests.support.scenes import Hand, Stage, Staged


@pytest.fixture(scope="module")
def stage_url(server_url: str, template: str) -> Iterator[str]:
    with scenes.database(server_url, template) as url:
        yield url


@pytest.fixture
def stage(stage_url: str) -> Iterator[Stage]:
    with Stage(stage_url) as stage:
        yield stage


def refused(item: Item, message: str, status: int = 404) -> Failed:
    """An item that the upstream has refused, as the HTTP executor says it."""
    body = {"error": {"message": message}}
    line = {"custom_id": item.custom_id.decode(), "response": {"status_code": status, "body": body}}
    return Failed(item, json.dumps(line).encode(), status)


def again(item: Item, message: str, status: int = 503, delay: float = LATER) -> Retried:
    return Retried(item, f"http_{status}", message, delay)


async def found(db: Session, batch: Batch) -> list[CauseCount]:
    return await failures.causes(db, await read(db, batch))


def facts(causes: list[CauseCount]) -> list[tuple[str, str, int, int, str | None]]:
    return [(each.code, each.message, each.count, each.retrying, each.example) for each in causes]


async def a_limited_batch(db: Session, lines: int, settings: RunSettings) -> Batch:
    file_id = await a_file(db, {"model": lines})
    return await batches.create(db, NewBatch(new_id(), "default", file_id, "24h", LATER, settings))


# What is counted


async def test_failures_are_grouped_by_cause_with_an_example_while_the_batch_runs(db: Session) -> None:
    batch, worker = await a_batch(db, 20), a_worker()
    items = await take(db, worker, 10)
    missing = 'model not found: "gpt-5-mini"'
    await spans.settle(db, worker.id, [refused(item, missing) for item in items[:3]])
    long = [refused(item, f"{item.line_no} tokens are too many", 400) for item in items[3:5]]
    await spans.settle(db, worker.id, [*long, refused(items[5], missing), completed(items[6])])
    await spans.settle(db, worker.id, [again(item, "overloaded") for item in items[7:9]])

    assert facts(await found(db, batch)) == [
        ("http_404", missing, 4, 0, "line-1"),
        ("http_400", "N tokens are too many", 2, 0, "line-4"),
        ("http_503", "overloaded", 0, 2, "line-8"),
    ]


async def test_a_retry_that_runs_again_is_not_counted_and_its_failure_becomes_the_example(
    db: Session,
) -> None:
    batch, worker = await a_batch(db, 5), a_worker()
    items = await take(db, worker, 2)
    await spans.settle(db, worker.id, [again(item, "overloaded") for item in items])
    await pass_time(db)
    first, second = await take(db, worker, 2)
    assert await found(db, batch) == []
    await spans.settle(db, worker.id, [completed(first), refused(second, "overloaded", 503)])
    assert facts(await found(db, batch)) == [("http_503", "overloaded", 1, 0, "line-2")]


async def test_counts_stay_when_the_batch_ends(db: Session) -> None:
    batch, worker = await a_batch(db, 4), a_worker()
    items = await take(db, worker, 4)
    await spans.settle(db, worker.id, [refused(items[0], "no"), completed(items[1])])
    await spans.settle(db, worker.id, [refused(items[2], "no"), refused(items[3], "never")])
    expected = [("http_404", "no", 2, 0, "line-1"), ("http_404", "never", 1, 0, "line-4")]
    assert facts(await found(db, batch)) == expected
    assert await sql(db, "SELECT * FROM batchline.cause_counts") == []
    await finalize(db, worker, batch)
    assert facts(await found(db, batch)) == expected


async def test_a_batch_without_failures_has_no_causes_and_reads_none(db: Session) -> None:
    batch, worker = await a_batch(db, 2), a_worker()
    await spans.settle(db, worker.id, [completed(item) for item in await take(db, worker, 1)])
    assert await found(db, batch) == []


async def test_a_result_keeps_the_key_of_its_cause_and_so_does_a_failed_attempt(db: Session) -> None:
    await a_batch(db, 3)
    worker = a_worker()
    first, second, third = await take(db, worker, 3)
    verdicts: list[Verdict] = [
        refused(first, "line-1 of 7 is bad", 400),
        again(second, "overloaded"),
        completed(third),
    ]
    await spans.settle(db, worker.id, verdicts)
    rows = await sql(db, "SELECT cause, output FROM batchline.results ORDER BY line_no")
    assert rows[0][0] == cause("http_400", "… of N is bad").key
    assert rows[0][0] == cause_of_line(rows[0][1].encode(), 400, b"line-1").key
    assert rows[1][0] is None
    assert await sql(db, "SELECT cause FROM batchline.retry_attempts") == [
        (cause("http_503", "overloaded").key,)
    ]


async def test_failures_from_before_causes_were_kept_are_other(db: Session) -> None:
    batch, worker = await a_batch(db, 3), a_worker()
    first, second, _ = await take(db, worker, 3)
    await spans.settle(db, worker.id, [refused(first, "no")])
    await sql(db, "DELETE FROM batchline.failure_causes; DELETE FROM batchline.cause_counts")
    await spans.settle(db, worker.id, [refused(second, "never")])
    assert facts(await found(db, batch)) == [
        ("http_404", "never", 1, 0, "line-2"),
        ("", "other causes", 1, 0, None),
    ]


# Hostile messages


async def test_1_000_different_messages_list_100_causes_and_count_the_rest_as_other(db: Session) -> None:
    batch, worker = await a_batch(db, 1001), a_worker()
    items = await take(db, worker, 1001)
    words = list(map(word, items))
    verdicts = [refused(item, f"bad {word}") for item, word in zip(items[:1000], words, strict=False)]
    for start in range(0, 1000, 250):
        await spans.settle(db, worker.id, verdicts[start : start + 250])

    causes = await found(db, batch)
    assert len(causes) == 101
    assert causes[-1] == CauseCount("other", "", "other causes", 900, 0, None)
    assert sum(each.count for each in causes) == (await read(db, batch)).failed == 1000
    assert (await sql(db, "SELECT count(*) FROM batchline.failure_causes"))[0] == (100,)
    assert (await sql(db, "SELECT count(*) FROM batchline.cause_counts"))[0] == (100,)
    assert (await doctor.examine(db)).clean


def word(item: Item) -> str:
    """Of letters, because numbers are no part of a cause."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(item.line_no))


async def test_causes_of_lines_that_were_put_back_leave_room_for_new_ones(db: Session) -> None:
    batch, worker = await a_batch(db, 150), a_worker()
    items = await take(db, worker)
    await spans.settle(db, worker.id, [refused(item, f"bad {word(item)}") for item in items])
    assert len(await found(db, batch)) == 101
    assert await retry_lines(db, await finalize(db, worker, batch), RetrySelection()) == 150
    items = await take(db, worker)
    await spans.settle(db, worker.id, [refused(item, "no") for item in items[:60]])
    await spans.settle(db, worker.id, [refused(item, "never") for item in items[60:]])
    assert facts(await found(db, batch))[:2] == [
        ("http_404", "never", 90, 0, "line-61"),
        ("http_404", "no", 60, 0, "line-1"),
    ]
    assert (await doctor.examine(db)).clean


async def test_a_cause_with_failures_that_are_not_listed_stays_other(db: Session) -> None:
    batch, worker = await a_batch(db, 160), a_worker()
    items = await take(db, worker)
    await spans.settle(db, worker.id, [refused(item, f"bad {word(item)}") for item in items[:150]])
    listed = {each.key for each in (await found(db, batch))[:-1]}
    (unlisted, *_) = [item for item in items if cause("http_404", f"bad {word(item)}").key not in listed]
    await spans.settle(db, worker.id, [completed(item) for item in items[150:]])
    ended = await finalize(db, worker, batch)
    assert await retry_lines(db, ended, RetrySelection(causes=tuple(listed))) == 100
    items = await take(db, worker)
    await spans.settle(db, worker.id, [refused(item, f"bad {word(unlisted)}") for item in items])
    assert (await doctor.examine(db)).clean


async def test_causes_of_retries_leave_room_for_those_of_failures(db: Session) -> None:
    batch, worker = await a_batch(db, 100), a_worker()
    items = await take(db, worker, 99)
    words = list(map(word, items))
    retries = [again(item, f"busy {word}") for item, word in zip(items[:98], words, strict=False)]
    await spans.settle(db, worker.id, retries)
    await spans.settle(db, worker.id, [refused(items[98], "no")])
    causes = await found(db, batch)
    assert len(causes) == 51
    assert facts(causes)[0] == ("http_404", "no", 1, 0, "line-99")


HOSTILE = (
    "\x00\x1b[2J\u202eevil\r\n\tnext",
    "\ud800 half",
    "x" * 100_000,
    '"' * 10_000,
    "1" + "a" * 10_000,
    "%s %(batch)s {0} '; DROP TABLE batches; --",
    "",
)


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_hostile_message_is_stored_short_on_one_line_and_counted(db: Session, message: str) -> None:
    batch, worker = await a_batch(db, 3), a_worker()
    first, second, _ = await take(db, worker, 3)
    await spans.settle(db, worker.id, [refused(first, message), again(second, message[:MAX_MESSAGE])])
    causes = await found(db, batch)
    assert sorted((each.count, each.retrying) for each in causes) == [(0, 1), (1, 0)]
    for each in causes:
        assert each.message.isprintable()
        assert len(each.message) <= 200


@pytest.mark.parametrize(
    "output", [b"", b"[", b"{}", b'{"response": 1}', b"\xff", b"[" * 5000, b"1" * 70_000]
)
def test_an_error_line_of_any_shape_has_a_cause(output: bytes) -> None:
    assert cause_of_line(output, 404) == cause("http_404", "")
    assert cause_of_line(output, None) == cause("failed", "")


# Concurrency


def test_workers_that_settle_at_once_count_every_failure_once(stage: Stage) -> None:
    batch, lines = stage.batch(600, 600), 1200
    start = threading.Barrier(4)

    def work(nth: int) -> None:
        hand = stage.hand()
        start.wait()
        while items := hand.take(40, batch=batch.id):
            for few in (items[:25], items[20:]):
                verdicts = [refused(item, f"bad {'abc'[item.ordinal % 3]}") for item in few]
                # Some come a second time, in a group with others.
                hand.settle(verdicts)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, nth) for nth in range(4)]:
            done.result()

    assert stage.counters(batch) == (0, lines)
    assert dict(
        stage.rows("SELECT message, failed FROM batchline.failure_causes WHERE batch_id = %s", batch.id)
    ) == {"bad a": 400, "bad b": 400, "bad c": 400}
    assert not stage.broken()


def test_a_settle_waits_for_another_of_its_batch_and_counts_on_from_there(stage: Stage) -> None:
    stage.batch(10)
    anna, bert = stage.hand(), stage.hand()
    hers, his = anna.take(3), bert.take(4)
    with anna.holding():
        anna.settle([refused(item, "no") for item in hers])
        later = stage.meanwhile(bert, lambda: bert.settle([refused(item, "no") for item in his]))
        assert later.waits(), "both list the same cause"
    later.result()
    assert stage.rows("SELECT failed FROM batchline.current_failure_causes") == [(7,)]
    assert stage.value("SELECT count(*) FROM batchline.cause_counts") == 1
    assert not stage.broken()


def test_a_settle_that_is_sent_twice_counts_once(stage: Stage) -> None:
    stage.batch(4)
    hand = stage.hand()
    verdicts = [refused(item, "no") for item in hand.take(3)]
    hand.settle(verdicts)
    hand.settle(verdicts)
    assert stage.rows("SELECT failed FROM batchline.current_failure_causes") == [(3,)]


# The end of causes


async def test_a_deleted_batch_takes_its_causes_with_it(db: Session) -> None:
    batch, worker = await a_batch(db, 3), a_worker()
    first, second, _ = await take(db, worker, 3)
    await spans.settle(db, worker.id, [refused(first, "no")])
    await sql(db, "DELETE FROM batchline.batches WHERE id = %(id)s", id=batch.id)
    await spans.settle(db, worker.id, [refused(second, "no")])
    assert await sql(db, "SELECT * FROM batchline.failure_causes") == []


async def test_a_purge_deletes_what_upstreams_said(db: Session) -> None:
    batch, worker = await a_batch(db, 1), a_worker()
    await spans.settle(db, worker.id, [refused(item, "no") for item in await take(db, worker, 1)])
    await finalize(db, worker, batch)
    await sql(db, "UPDATE batchline.batches SET purging_at = now()")
    await retention.drop_results(db, batch.id)
    await retention.batch_purged(db, batch.id)
    assert facts(await found(db, batch)) == [("", "other causes", 1, 0, None)]


# Pauses


async def settle_next(
    db: Session, batch: Batch, verdicts: str, message: str = "no", status: int = 404
) -> bool:
    """Claim as many lines as there are letters, complete (c) or fail (f) them; whether that paused it."""
    worker = a_worker()
    items = await take(db, worker, len(verdicts), Scope(batch_id=batch.id))
    assert len(items) == len(verdicts)
    judged = [
        completed(item) if letter == "c" else refused(item, message, status)
        for item, letter in zip(items, verdicts, strict=True)
    ]
    settled = await spans.settle(db, worker.id, judged)
    return any(row.paused for row in settled)


async def is_paused(db: Session, batch: Batch) -> bool:
    return (await read(db, batch)).paused_at is not None


@pytest.mark.parametrize(
    "settings", [RunSettings(max_failed=3), RunSettings(max_failed_percent=10.0)], ids=["number", "percent"]
)
async def test_a_batch_is_paused_when_more_lines_have_failed_than_it_allows(
    db: Session, settings: RunSettings
) -> None:
    batch = await a_limited_batch(db, 39, settings)
    assert not await settle_next(db, batch, "ccffcf")
    assert not await is_paused(db, batch)
    assert await settle_next(db, batch, "cfc")
    reason = await pause_reason(db, await read(db, batch))
    assert reason is not None
    assert (reason.rule, reason.threshold) == ("max_failed", 3)
    assert await is_paused(db, batch)
    assert await take(db, a_worker(), 10) == [], "its lanes are closed"
    assert (await doctor.examine(db)).clean


async def test_a_continued_batch_counts_failures_anew(db: Session) -> None:
    batch = await a_limited_batch(db, 30, RunSettings(max_failed=1))
    assert await settle_next(db, batch, "ffcff")
    assert await batches.resume(db, batch.id)
    assert await pause_reason(db, await read(db, batch)) is None
    assert not await settle_next(db, batch, "cf")
    assert await settle_next(db, batch, "f")
    assert await is_paused(db, batch)


async def test_a_batch_whose_first_lines_all_fail_alike_is_paused(db: Session) -> None:
    batch = await a_limited_batch(db, 30, RunSettings(pause_alike=5))
    assert not await settle_next(db, batch, "ffff", status=401)
    assert await settle_next(db, batch, "f", status=401)
    reason = await pause_reason(db, await read(db, batch))
    assert reason is not None
    assert (reason.rule, reason.threshold) == ("alike", 5)


async def test_a_continued_batch_that_still_fails_alike_is_paused_again_after_as_many_lines(
    db: Session,
) -> None:
    batch = await a_limited_batch(db, 40, RunSettings(pause_alike=5))
    assert await settle_next(db, batch, "fffff")
    await batches.resume(db, batch.id)
    assert not await settle_next(db, batch, "ffff")
    assert await settle_next(db, batch, "f")
    await batches.resume(db, batch.id)
    assert not await settle_next(db, batch, "cffffffff")


@pytest.mark.parametrize("status", [408, 409, 422, 429, 500, 503])
async def test_other_statuses_do_not_pause_a_batch(db: Session, status: int) -> None:
    batch = await a_limited_batch(db, 30, RunSettings(pause_alike=5))
    assert not await settle_next(db, batch, "ffffff", status=status)


async def test_different_failures_do_not_pause_a_batch_nor_do_those_after_an_answer(db: Session) -> None:
    batch = await a_limited_batch(db, 40, RunSettings(pause_alike=5))
    assert not await settle_next(db, batch, "ffff", status=400)
    assert not await settle_next(db, batch, "ffffff", message="never", status=400)
    other = await a_limited_batch(db, 41, RunSettings(pause_alike=5))
    await batches.close(db, batch.id, "cancel")
    assert not await settle_next(db, other, "cffffffff")


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_one_status_is_alike_even_if_its_messages_differ(db: Session, status: int) -> None:
    batch = await a_limited_batch(db, 40, RunSettings(pause_alike=5))
    assert not await settle_next(db, batch, "ffff", message="key-1 is wrong", status=status)
    assert await settle_next(db, batch, "f", message="key-2 is wrong", status=status)


async def test_one_status_is_alike_even_if_more_messages_differ_than_a_batch_lists(db: Session) -> None:
    await a_limited_batch(db, 300, RunSettings(pause_alike=50))
    worker = a_worker()
    items = await take(db, worker, 150)
    verdicts = [refused(item, f"key {word(item)} is wrong", 401) for item in items]
    assert [row.paused for row in await spans.settle(db, worker.id, verdicts)] == [True]


async def test_different_statuses_are_not_alike_whenever_they_come(db: Session) -> None:
    batch = await a_limited_batch(db, 40, RunSettings(pause_alike=5))
    assert not await settle_next(db, batch, "fff", status=401)
    assert not await settle_next(db, batch, "f", status=500)
    assert not await settle_next(db, batch, "ffffff", status=401)
    worker = a_worker()
    other = await a_limited_batch(db, 40, RunSettings(pause_alike=5))
    items = await take(db, worker, 6, Scope(batch_id=other.id))
    mixed = [refused(item, "no", 401 + 2 * (n % 2)) for n, item in enumerate(items)]
    assert not any(row.paused for row in await spans.settle(db, worker.id, mixed))


async def an_edited_rerun(db: Session, settings: RunSettings) -> Batch:
    """90 of its 100 lines have a reused answer."""
    used = msgspec.structs.replace(settings, upstream="http://model.example/v1")
    first = await a_reusing_batch(db, await a_file_of(db, [f"{n}" for n in range(90)]), settings=used)
    await answer_all(db, a_worker(), first)
    batch = await a_reusing_batch(db, await a_file_of(db, [f"{n}" for n in range(100)]), settings=used)
    assert (batch.total, batch.reused) == (100, 90)
    return batch


async def test_reused_answers_do_not_keep_a_batch_from_being_paused(db: Session) -> None:
    batch = await an_edited_rerun(db, RunSettings(pause_alike=5))
    assert not await settle_next(db, batch, "ffff", status=401)
    assert await settle_next(db, batch, "f", status=401)
    await batches.resume(db, batch.id)
    assert not await settle_next(db, batch, "cffff", status=401), "one has an answer now"


async def test_a_percentage_is_of_the_lines_that_are_sent(db: Session) -> None:
    batch = await an_edited_rerun(db, RunSettings(max_failed_percent=20.0))
    assert not await settle_next(db, batch, "ff")
    assert await settle_next(db, batch, "f")


async def test_a_batch_without_limits_is_never_paused(db: Session) -> None:
    batch = await a_batch(db, 200)
    assert not await settle_next(db, batch, "f" * 150)
    assert not await is_paused(db, batch)


async def test_a_batch_that_has_ended_or_is_cancelled_is_not_paused(db: Session) -> None:
    batch = await a_limited_batch(db, 3, RunSettings(max_failed=0))
    assert not await settle_next(db, batch, "fff"), "nothing is left to pause"
    other, worker = await a_limited_batch(db, 3, RunSettings(max_failed=0)), a_worker()
    items = await take(db, worker, 2)
    await batches.close(db, other.id, "cancel")
    settled = await spans.settle(db, worker.id, [refused(items[0], "no")])
    assert not any(row.paused for row in settled)


async def test_a_pause_by_hand_has_no_reason(db: Session) -> None:
    batch = await a_batch(db, 3)
    await batches.close(db, batch.id, "pause")
    assert await pause_reason(db, await read(db, batch)) is None


def test_of_two_workers_whose_failures_exceed_the_limit_together_the_second_pauses_the_batch(
    stage: Stage,
) -> None:
    stage.batch(20, settings='{"max_failed": 5}')
    anna, bert = stage.hand(), stage.hand()
    hers, his = anna.take(3), bert.take(3)
    with anna.holding():
        assert not any(row.paused for row in anna.settle([refused(item, "no") for item in hers]))
        later = stage.meanwhile(bert, lambda: bert.settle([refused(item, "no") for item in his]))
        assert later.waits()
    assert [row.paused for row in later.result()] == [True]
    assert stage.value("SELECT bool_or(open) FROM batchline.lanes") is False


def test_a_pause_waits_for_a_claim_that_holds_a_lane_and_then_no_claim_finds_a_line(stage: Stage) -> None:
    batch = stage.batch(10, 10, settings='{"max_failed": 0}')
    anna, bert = stage.hand(), stage.hand()
    items = anna.take(2)
    with bert.holding():
        bert.claim(12, batch=batch.id)
        later = stage.meanwhile(anna, lambda: anna.settle([refused(item, "no") for item in items]))
        assert later.waits()
    assert [row.paused for row in later.result()] == [True]
    assert anna.claim(5, batch=batch.id) == []
    assert not stage.broken()


def test_a_resume_knows_the_failures_of_a_settle_that_it_has_waited_for(stage: Stage) -> None:
    """Otherwise these would count again, and the batch would be paused at once."""
    batch = stage.batch(30, settings='{"max_failed": 2}')
    anna, bert = stage.hand(), stage.hand()
    items = anna.take(12)
    anna.settle([refused(item, "no") for item in items[:3]])
    with anna.holding():
        anna.settle([refused(item, "no") for item in items[3:9]])
        resuming = stage.meanwhile(bert, lambda: bert.resume(batch.id))
        assert resuming.waits()
    assert resuming.result()
    assert not any(row.paused for row in anna.settle([refused(item, "no") for item in items[9:11]]))
    assert [row.paused for row in anna.settle([refused(items[11], "no")])] == [True]


def test_a_settle_that_is_rolled_back_pauses_nothing(stage: Stage) -> None:
    batch = stage.batch(10, settings='{"max_failed": 0}')
    hand = stage.hand()
    items = hand.take(2)

    with hand.connection.transaction(force_rollback=True):
        assert [row.paused for row in hand.settle([refused(items[0], "no")])] == [True]

    assert stage.counters(batch) == (0, 0)
    assert stage.rows("SELECT * FROM batchline.failure_causes") == []
    assert stage.value("SELECT paused_at FROM batchline.batches") is None


# Locks


def a_crossed_pair(stage: Stage, settings: str = '{"max_failed": 0}') -> tuple[Staged, Staged]:
    """Two batches. The one with the lower id has the higher lane, as one whose creation took long."""
    lower, higher = sorted((new_id(), new_id()))
    second = stage.batch(10, settings=settings, batch_id=higher)
    return stage.batch(10, settings=settings, batch_id=lower), second


def lock_lane(hand: Hand, batch: Staged) -> None:
    """As a claim does, and without waiting."""
    hand.connection.execute(
        "SELECT FROM batchline.lanes WHERE id = %s FOR NO KEY UPDATE NOWAIT", (batch.lanes[0],)
    )


def pause(stage: Stage, hand: Hand, batch: Staged, item: Item) -> Verdict:
    return scenes.failed(item)


def cancel(stage: Stage, hand: Hand, batch: Staged, item: Item) -> Verdict:
    hand.close(batch.id, "cancel")
    return scenes.completed(item)


def end_without_those_left_out(stage: Stage, hand: Hand, batch: Staged, item: Item) -> Verdict:
    stage.db.execute(
        "UPDATE batchline.batches SET left_out = 9, left_out_as = 'cancelled' WHERE id = %s", (batch.id,)
    )
    return scenes.completed(item)


@pytest.mark.parametrize("closing", [pause, cancel, end_without_those_left_out])
def test_a_settle_locks_no_lane_before_the_rows_of_all_its_batches(
    stage: Stage, closing: Callable[[Stage, Hand, Staged, Item], Verdict]
) -> None:
    """Otherwise it holds a lane of the first batch and waits for the row of the second. Its holder waits for
    a lane, and the holder of that lane, a claim, waits for the first lane."""
    first, second = a_crossed_pair(stage)
    settler, closer, claimer = stage.hand(), stage.hand(), stage.hand()
    (one,), (two,) = (settler.take(1, batch=batch.id) for batch in (first, second))
    verdicts = [closing(stage, closer, first, one), scenes.completed(two)]
    with claimer.holding():
        lock_lane(claimer, second)
        pausing = stage.meanwhile(closer, lambda: closer.close(second.id, "pause"))
        assert pausing.waits()
        settling = stage.meanwhile(settler, lambda: settler.settle(verdicts))
        assert settling.waits()
        lock_lane(claimer, first)
    assert pausing.result()
    for row in settling.result():
        if row.closing and not row.finished:
            assert settler.conclude(row.batch_id)
    assert stage.value("SELECT bool_or(open) FROM batchline.lanes") is False


def test_a_settle_that_pauses_two_batches_locks_their_lanes_in_order(stage: Stage) -> None:
    first, second = a_crossed_pair(stage)
    settler, claimer = stage.hand(), stage.hand()
    items = [item for batch in (first, second) for item in settler.take(1, batch=batch.id)]
    with claimer.holding():
        lock_lane(claimer, second)
        settling = stage.meanwhile(settler, lambda: settler.settle(list(map(scenes.failed, items))))
        assert settling.waits()
        lock_lane(claimer, first)
    assert [row.paused for row in settling.result()] == [True, True]
    assert stage.value("SELECT bool_or(open) FROM batchline.lanes") is False


def test_a_conclusion_locks_lanes_in_order(stage: Stage) -> None:
    batch = stage.batch(5, 5)
    # The lanes lie on disk in the other order.
    stage.db.execute("UPDATE batchline.lanes SET open = true WHERE id = %s", (batch.lanes[0],))
    worker, claimer = stage.hand(), stage.hand()
    items = worker.take(8)
    worker.settle(list(map(scenes.completed, items)))
    worker.close(batch.id, "cancel")
    with claimer.holding():
        lock_lane(claimer, batch)
        concluding = stage.meanwhile(worker, lambda: worker.conclude(batch.id))
        assert concluding.waits()
        claimer.connection.execute(
            "SELECT FROM batchline.lanes WHERE id = %s FOR NO KEY UPDATE NOWAIT", (batch.lanes[1],)
        )
    assert concluding.result()


def test_causes_are_counted_only_for_batches_that_have_failures(stage: Stage) -> None:
    stage.batches([1] * 20)
    hand = stage.hand()
    one, *others = hand.take(20)
    with hand.holding():
        hand.connection.execute("SET LOCAL track_functions = 'all'")
        hand.settle([scenes.failed(one), *map(scenes.completed, others)])
        calls = hand.connection.execute(
            "SELECT funcname, calls FROM pg_stat_xact_user_functions"
            " WHERE funcname IN ('add_counts_v1', 'count_causes_v1') ORDER BY 1"
        ).fetchall()
    assert calls == [("add_counts_v1", 20), ("count_causes_v1", 1)]


async def test_the_counts_of_retrying_lines_are_estimates_when_very_many_wait(db: Session) -> None:
    batch, worker = await a_batch(db, 3000), a_worker()
    items = [item for _ in range(3) for item in await take(db, worker, 1000)]
    for start in range(0, 3000, 500):
        verdicts = [again(item, "ab"[item.ordinal % 2], delay=LATER) for item in items[start : start + 500]]
        await spans.settle(db, worker.id, verdicts)
    counted = Counter({each.message: each.retrying for each in await found(db, batch)})
    assert sum(counted.values()) == 3000
    assert min(counted["a"], counted["b"]) > 0
