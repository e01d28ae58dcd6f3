"""Finalizing: files in input order, exactly one end, nothing lost or left behind, no lock over the upload."""

import asyncio
import json
import sys
from collections.abc import AsyncIterable
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from batchline.batches.finalize import FinalizeMismatch, finalize_one, sweep_objects
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.model import Batch, BatchStatus, Completed
from batchline.store import batches, outputs, spans
from batchline.store.outputs import Contended, Which
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import WorkerId
from batchline.store.statements import Statement
from tests.support.builders import (
    a_batch,
    a_worker,
    completed,
    end_finalize_backoff,
    failed,
    kill,
    overrun,
    read,
    sql,
    take,
    until,
)
from tests.support.finalizing import (
    AT_ONCE,
    a_finished_batch,
    a_large_batch,
    answers,
    ended,
    recorded,
    settle,
)
from tests.support.scenes import Hand

NASTY_IDS = [
    '"quoted"',
    "back\\slash",
    "new\nline",
    "\\n",
    "tab\tbell\x07",
    "日本 🎉",
    "</script>",
    "{}",
    "'",
    "\x7f",
]


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(tmp_path / "objects")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


class Pause:
    """Holds a finalizer at one point until it is let go."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.reached_it = asyncio.Event()
        self.go_on = asyncio.Event()

    async def reached(self, point: str) -> None:
        if point == self.point:
            self.reached_it.set()
            await self.go_on.wait()


class Held(Objects):
    """A store that stops in the middle of the first upload until it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Objects.at(folder)._store)
        self.half_way = asyncio.Event()
        self.go_on = asyncio.Event()

    async def write(self, key: str, blocks: AsyncIterable[bytes]) -> int:
        return await super().write(key, self._held(blocks))

    async def _held(self, blocks: AsyncIterable[bytes]) -> AsyncIterable[bytes]:
        async for block in blocks:
            yield block
            self.half_way.set()
            await self.go_on.wait()


async def streamed(db: Session, batch: Batch, which: Which) -> list[bytes]:
    lines = await outputs.lines(db, batch.id, which)
    text = b"".join([block async for block in lines])
    assert lines.count == text.count(b"\n"), "each item should be one line"
    return text.splitlines()


async def recorded_keys(db: Session) -> list[str]:
    return [
        key
        for (key,) in await sql(
            db, "SELECT object_key FROM batchline.files WHERE object_key IS NOT NULL ORDER BY 1"
        )
    ]


def stored_keys(folder: Path) -> list[str]:
    """Everything that lies in the folder, whatever obstore would say."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


async def finalizer_of(db: Session, batch: Batch) -> UUID | None:
    ((finalizer,),) = await sql(db, "SELECT finalizer FROM batchline.batches WHERE id = %(id)s", id=batch.id)
    assert finalizer is None or isinstance(finalizer, UUID)
    return finalizer


# --- What is in the files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [{"a": 50}, {"a": 50, "b": 20, "c": 31}])
async def test_output_is_every_settled_line_in_input_order(
    db: Session, objects: Objects, lanes: dict[str, int]
) -> None:
    batch = await a_finished_batch(db, lanes)
    done = await ended(finalize_one(db, objects, a_worker()))
    assert done.id == batch.id
    assert done.status is BatchStatus.COMPLETED
    assert done.error_file_id is None
    assert await recorded(db, objects, done.output_file_id) == answers(*range(1, batch.total + 1))


async def test_failed_lines_are_in_the_error_file_and_all_others_in_the_output(
    db: Session, objects: Objects
) -> None:
    await a_finished_batch(db, {"a": 9, "b": 6}, fail=lambda item: item.line_no % 5 == 0)
    done = await ended(finalize_one(db, objects, a_worker()))
    assert (done.completed, done.failed) == (12, 3)
    kept = [n for n in range(1, 16) if n % 5]
    assert await recorded(db, objects, done.output_file_id) == answers(*kept)
    assert await recorded(db, objects, done.error_file_id) == [b'{"error": %d}' % n for n in (5, 10, 15)]


async def test_a_batch_of_which_all_failed_is_completed_and_has_no_output_file(
    db: Session, objects: Objects
) -> None:
    await a_finished_batch(db, 5, fail=lambda _: True)
    done = await ended(finalize_one(db, objects, a_worker()))
    assert done.status is BatchStatus.COMPLETED
    assert done.output_file_id is None
    assert len(await recorded(db, objects, done.error_file_id)) == 5


@pytest.mark.parametrize("reason", ["cancel", "expire"])
@pytest.mark.parametrize("lanes", [{"a": 40}, {"a": 20, "b": 13, "c": 7}])
async def test_a_batch_that_is_closed_keeps_what_is_finished_and_names_the_rest(
    db: Session, objects: Objects, reason: str, lanes: dict[str, int]
) -> None:
    worker = a_worker()
    batch = await a_batch(db, lanes)
    items = await take(db, worker, 25)
    done, rest = items[:15], items[15:]
    await settle(db, worker, done, fail=lambda item: item.line_no % 4 == 0)
    if reason == "cancel":
        await batches.close(db, batch.id, "cancel")
    else:
        await overrun(db, batch.id)
        await batches.close(db, batch.id, "expire")
    assert await finalize_one(db, objects, a_worker()) is None, "a worker still holds some of it"
    await spans.release(db, worker.id, {item.claim.span_id for item in rest})
    await batches.conclude(db, batch.id)

    closed = await ended(finalize_one(db, objects, a_worker()))
    good = sorted(item.line_no for item in done if item.line_no % 4)
    bad = {item.line_no for item in done} - set(good)
    assert closed.status is (BatchStatus.CANCELLED if reason == "cancel" else BatchStatus.EXPIRED)
    assert (closed.total, closed.completed, closed.failed) == (40, len(good), len(bad))
    assert await recorded(db, objects, closed.output_file_id) == answers(*good)

    code = "batch_cancelled" if reason == "cancel" else "batch_expired"
    expected = [
        b'{"error": %d}' % n if n in bad else never_run(batch, n, f"line-{n}", code)
        for n in range(1, 41)
        if n not in good
    ]
    assert await recorded(db, objects, closed.error_file_id) == expected
    assert closed.summary is not None
    assert closed.summary["never_run"] == 25


def never_run(batch: Batch, line_no: int, custom_id: str, code: str) -> bytes:
    """The line as the contract has it, written as compactly as every other output line."""
    line = {
        "id": f"batch_req_{batch.id.hex}_{line_no}",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": outputs.NEVER_RUN[code]},
    }
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()


async def test_a_batch_that_is_cancelled_before_anything_ran_has_only_an_error_file(
    db: Session, objects: Objects
) -> None:
    batch = await a_batch(db, 3)
    await batches.close(db, batch.id, "cancel")
    done = await ended(finalize_one(db, objects, a_worker()))
    assert done.output_file_id is None
    assert len(await recorded(db, objects, done.error_file_id)) == 3


async def test_every_custom_id_survives_in_an_error_line_that_sql_has_made(
    db: Session, objects: Objects
) -> None:
    batch = await a_batch(db, len(NASTY_IDS))
    await sql(
        db,
        "UPDATE batchline.lines SET custom_id = (%(ids)s::text[])[line_no]",
        ids=NASTY_IDS,
    )
    await batches.close(db, batch.id, "expire")
    done = await ended(finalize_one(db, objects, a_worker()))
    lines = [json.loads(line) for line in await recorded(db, objects, done.error_file_id)]
    assert [line["custom_id"] for line in lines] == NASTY_IDS
    assert lines[0] == json.loads(never_run(batch, 1, NASTY_IDS[0], "batch_expired"))


async def test_results_so_far_can_be_read_while_the_batch_runs(db: Session) -> None:
    worker = a_worker()
    batch = await a_batch(db, {"a": 10, "b": 10})
    items = await take(db, worker, 12)
    await settle(db, worker, items[:9], fail=lambda item: item.line_no == items[0].line_no)
    assert await streamed(db, batch, "output") == answers(*sorted(i.line_no for i in items[1:9]))
    assert await streamed(db, batch, "errors") == [b'{"error": %d}' % items[0].line_no]
    await batches.close(db, batch.id, "cancel")
    assert len(await streamed(db, batch, "errors")) == 1, "what is in flight may still get a result"


async def test_a_stored_line_that_holds_raw_control_characters_stays_one_line(db: Session) -> None:
    worker = a_worker()
    batch = await a_batch(db, 4)
    items = sorted(await take(db, worker), key=lambda item: item.line_no)
    raw = [b'{"a":\n1}', b'{"a":\r\n2}', b'{"a":\x01\x023}', rb'{"a":"\n\u0001"}']
    await spans.settle(db, worker.id, [Completed(i, 200, r) for i, r in zip(items, raw, strict=True)])
    expected = [b'{"a": 1}', b'{"a":  2}', b'{"a":  3}', rb'{"a":"\n\u0001"}']
    assert await streamed(db, batch, "output") == expected


async def test_a_reader_may_leave_a_stream_before_its_end(db: Session) -> None:
    batch = await a_large_batch(db)
    lines = await outputs.lines(db, batch.id, "output")
    async with aclosing(aiter(lines)) as blocks:
        await anext(blocks)
    assert 0 < lines.count < batch.total
    assert len(await streamed(db, batch, "output")) == batch.total, "the session should still work"


async def test_a_file_of_thousands_of_lanes_is_merged_too(db: Session) -> None:
    batch = await a_batch(db, {f"model-{n}": 1 for n in range(1500)})
    await batches.close(db, batch.id, "cancel")
    lines = await streamed(db, batch, "errors")
    assert [json.loads(line)["custom_id"] for line in lines] == [f"line-{n}" for n in range(1, 1501)]


async def test_the_summary_says_what_became_of_the_batch(db: Session, objects: Objects) -> None:
    batch = await a_finished_batch(db, 10, fail=lambda item: item.line_no > 8)
    done = await ended(finalize_one(db, objects, a_worker()))
    assert batch.finalizing_at is not None
    assert done.summary == {
        "total": 10,
        "completed": 8,
        "failed": 2,
        "never_run": 0,
        "reused": 0,
        "duplicates": 0,
        "tokens": {"input": 24, "cached": 0, "output": 40, "reasoning": 0},
        "outcomes": [
            {"outcome": "completed", "status_code": 200, "items": 8, "highest_attempt": 1},
            {"outcome": "failed", "status_code": 400, "items": 2, "highest_attempt": 1},
        ],
        "seconds": (batch.finalizing_at - batch.created_at).total_seconds(),
    }


# --- Exactly one end ---------------------------------------------------------------------------------------


async def test_there_is_nothing_to_finalize_while_a_batch_runs(db: Session, objects: Objects) -> None:
    batch = await a_batch(db, 2)
    assert await finalize_one(db, objects, a_worker()) is None
    assert await finalize_one(db, objects, a_worker(), batch.id) is None


async def test_of_two_finalizers_one_commits_and_the_other_removes_its_objects(
    database_url: str, db: Session, objects: Objects, folder: Path
) -> None:
    batch = await a_finished_batch(db, 30, fail=lambda item: item.line_no == 7)
    slow, quick, pause = a_worker("slow"), a_worker("quick"), Pause("uploaded")
    async with Session(database_url, "slow") as other:
        losing = asyncio.create_task(finalize_one(other, objects, slow, batch.id, pause))
        await pause.reached_it.wait()
        assert await finalize_one(db, objects, quick) is None, "the batch is taken"
        await kill(db, slow)
        done = await ended(finalize_one(db, objects, quick))
        assert len(stored_keys(folder)) == 4, "both have uploaded"
        pause.go_on.set()
        assert await losing is None, "the finalizer that was given up must not commit"
    assert await read(db, batch) == done
    assert stored_keys(folder) == await recorded_keys(db)
    assert len(await recorded(db, objects, done.output_file_id)) == 29
    assert len(await recorded(db, objects, done.error_file_id)) == 1
    assert await sql(db, "SELECT type FROM batchline.outbox") == [("batch.completed",)]


async def test_a_finalizer_that_was_replaced_cannot_commit_before_its_successor_does(
    database_url: str, db: Session, objects: Objects, folder: Path
) -> None:
    """Both have uploaded and neither has committed: the batch is the successor's to end."""
    batch = await a_finished_batch(db, 30)
    slow, quick = a_worker("slow"), a_worker("quick")
    first, second = Pause("committing"), Pause("committing")
    async with Session(database_url, "slow") as other:
        losing = asyncio.create_task(finalize_one(other, objects, slow, batch.id, first))
        await first.reached_it.wait()
        await kill(db, slow)
        winning = asyncio.create_task(finalize_one(db, objects, quick, batch.id, second))
        await second.reached_it.wait()
        first.go_on.set()
        assert await losing is None, "the finalizer that was given up must not commit"
        assert (await read(other, batch)).ended_at is None
        second.go_on.set()
        done = await ended(winning)
    assert stored_keys(folder) == await recorded_keys(db)
    assert len(await recorded(db, objects, done.output_file_id)) == 30
    assert await sql(db, "SELECT type FROM batchline.outbox") == [("batch.completed",)]


@pytest.mark.parametrize("left", [0.0, 3.0])
async def test_a_finalizer_keeps_its_batch_to_the_very_end_of_its_lease(
    database_url: str, db: Session, left: float
) -> None:
    finalizer, hand = a_worker(), Hand(database_url, 60.0)
    take_over = {"worker": hand.id, "name": "hand", "lease": hand.lease, "batch": None}
    take_over |= {"after_tenant": "", "max_lines": None, "under_way": []}
    batch = await a_finished_batch(db, 3)
    assert await batches.claim_finalizing(db, finalizer, batch.id) is not None
    # One transaction has one time, so the lease is neither longer nor over, however slow the machine is.
    with hand.connection, hand.holding():
        hand.renew(finalizer.id, left)
        assert not hand.poll().finalizable
        assert hand.run("claim_finalizing", take_over) == []
        hand.renew(finalizer.id, -0.001)
        assert hand.poll().finalizable
        assert len(hand.run("claim_finalizing", take_over)) == 1


async def test_finalizers_that_race_for_many_batches_end_each_once(
    database_url: str, db: Session, objects: Objects, folder: Path
) -> None:
    async def drain(worker: WorkerId) -> int:
        async with Session(database_url, worker.name) as own:
            count = 0
            while await finalize_one(own, objects, worker):
                count += 1
            return count

    for _ in range(12):
        await a_finished_batch(db, 3)
    counts = await asyncio.gather(*[drain(a_worker(f"worker-{n}")) for n in range(4)])
    # A worker may find the one batch that is left locked by a neighbour, and leave it to it.
    assert sum(counts) == 12
    assert await sql(db, "SELECT count(*), count(DISTINCT batch_id) FROM batchline.outbox") == [(12, 12)]
    assert stored_keys(folder) == await recorded_keys(db)


class LosesTheAnswer(Session):
    """A session whose first commit of a batch succeeds, but the connection breaks before the answer is in."""

    lost = False

    async def records(self, statement: Statement, params: Any) -> list[dict[str, Any]]:
        rows = await super().records(statement, params)
        if statement.name == "finish_batch" and not self.lost:
            self.lost = True
            raise StoreUnavailable("the connection broke")
        return rows


async def test_a_commit_whose_answer_was_lost_is_recognized_and_its_files_stay(
    database_url: str, db: Session, objects: Objects, folder: Path
) -> None:
    batch = await a_finished_batch(db)
    async with LosesTheAnswer(database_url, "unlucky") as unlucky:
        done = await ended(finalize_one(unlucky, objects, a_worker()))
    assert done == await read(db, batch)
    assert stored_keys(folder) == await recorded_keys(db)
    assert await sql(db, "SELECT count(*) FROM batchline.outbox") == [(1,)]


class Rival:
    """Locks the batch's row just before the commit, and lets go of it after so many tries."""

    def __init__(self, url: str, tries: int) -> None:
        self.connection = psycopg.connect(url)
        self.tries = tries

    async def reached(self, point: str) -> None:
        if point == "committing":
            self.connection.execute("SELECT FROM batchline.batches FOR UPDATE")
        if point == "contended":
            self.tries -= 1
            if self.tries == 0:
                self.let_go()

    def let_go(self) -> None:
        """Not only by closing the connection: the server ends the transaction some time after that."""
        self.connection.rollback()
        self.connection.close()


async def test_contention_at_the_commit_is_tried_again(database_url: str, objects: Objects) -> None:
    async with Session(make_conninfo(database_url, options="-c lock_timeout=10ms"), "test") as db:
        await a_finished_batch(db)
        rival = Rival(database_url, tries=4)
        done = await ended(finalize_one(db, objects, a_worker(), signals=rival))
        assert done.status is BatchStatus.COMPLETED


async def test_contention_that_lasts_is_a_typed_error_and_the_batch_can_be_taken_again(
    database_url: str, objects: Objects, folder: Path
) -> None:
    async with Session(make_conninfo(database_url, options="-c lock_timeout=10ms"), "test") as db:
        worker, rival = a_worker(), Rival(database_url, tries=5)
        batch = await a_finished_batch(db)
        with pytest.raises(Contended, match="lock timeout"):
            await finalize_one(db, objects, worker, signals=rival)
        rival.let_go()
        assert (await read(db, batch)).status is BatchStatus.FINALIZING
        await kill(db, worker)
        await end_finalize_backoff(db)
        await ended(finalize_one(db, objects, a_worker()))
        await sweep_objects(db, objects, AT_ONCE)
        assert stored_keys(folder) == await recorded_keys(db)


# --- Faults ------------------------------------------------------------------------------------------------

KILLED = """
import asyncio, sys
from datetime import timedelta
from pathlib import Path
from batchline.batches.finalize import finalize_one
from batchline.files.objects import Objects
from batchline.model.ids import new_id
from batchline.store.session import Session
from batchline.store.spans import WorkerId

url, folder = sys.argv[1:]

class Stuck(Objects):
    async def write(self, key, blocks):
        return await super().write(key, self.stuck(blocks))

    async def stuck(self, blocks):
        async for block in blocks:
            yield block
            if list(Path(folder).rglob("*#*")):
                print("uploading", flush=True)
                await asyncio.Event().wait()

async def main():
    worker = WorkerId(new_id(), "killed", timedelta(hours=1))
    async with Session(url, "killed") as session:
        await finalize_one(session, Stuck(Objects.at(folder)._store), worker)

asyncio.run(main())
"""


async def test_a_finalizer_that_is_killed_in_mid_upload_costs_its_lease_and_leaves_nothing(
    database_url: str, db: Session, objects: Objects, folder: Path
) -> None:
    batch = await a_large_batch(db)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, database_url, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"uploading\n"
    process.kill()
    await process.wait()
    (left,) = stored_keys(folder)
    assert left.endswith("-output.jsonl#1"), "the killed upload should be half-way"

    assert await finalize_one(db, objects, a_worker()) is None, "its lease is not over"
    assert await sweep_objects(db, objects, AT_ONCE) == 0, "it might still be alive"
    await sql(
        db, "UPDATE batchline.workers SET lease_until = now() - interval '1 second' WHERE name = 'killed'"
    )
    done = await ended(finalize_one(db, objects, a_worker()))
    assert len(await recorded(db, objects, done.output_file_id)) == batch.total
    assert left in stored_keys(folder)
    assert await sweep_objects(db, objects, AT_ONCE) == 1
    assert stored_keys(folder) == await recorded_keys(db)


async def test_an_object_store_that_fails_leaves_the_batch_for_the_next_try(
    db: Session, objects: Objects, folder: Path
) -> None:
    batch = await a_finished_batch(db)
    blocker = folder / "outputs"
    blocker.touch()
    with pytest.raises(ObjectStoreUnavailable, match="Not a directory"):
        await finalize_one(db, objects, a_worker())
    assert (await read(db, batch)).status is BatchStatus.FINALIZING
    assert await finalizer_of(db, batch) is None, "it should have let go of the batch"
    blocker.unlink()
    await end_finalize_backoff(db)
    await ended(finalize_one(db, objects, a_worker()))
    assert stored_keys(folder) == await recorded_keys(db)


class FullForErrors(Objects):
    """A store that takes the output file, and is full when the error file comes."""

    async def write(self, key: str, blocks: AsyncIterable[bytes]) -> int:
        if "errors" in key:
            raise ObjectStoreUnavailable("No space left on device")
        return await super().write(key, blocks)


async def test_if_the_second_file_fails_the_first_one_is_removed(
    db: Session, objects: Objects, folder: Path
) -> None:
    await a_finished_batch(db, fail=lambda item: item.line_no == 1)
    with pytest.raises(ObjectStoreUnavailable):
        await finalize_one(db, FullForErrors(objects._store), a_worker())
    assert stored_keys(folder) == []
    await end_finalize_backoff(db)
    await ended(finalize_one(db, objects, a_worker()))


@pytest.mark.parametrize("point", ["claimed", "half-way", "uploaded", "committing"])
async def test_a_cancelled_finalizer_releases_the_batch_and_deletes_its_objects(
    db: Session, folder: Path, point: str
) -> None:
    batch = await a_large_batch(db)
    held, pause = Held(folder), Pause(point)
    if point != "half-way":
        held.go_on.set()
    work = asyncio.create_task(finalize_one(db, held, a_worker(), signals=pause))
    await (held.half_way if point == "half-way" else pause.reached_it).wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await finalizer_of(db, batch) is None
    assert stored_keys(folder) == []
    await ended(finalize_one(db, Objects.at(folder), a_worker()))


@pytest.mark.parametrize(
    ("damage", "what", "expected", "found"),
    [
        (
            "UPDATE batchline.batches SET completed = completed - 1, failed = failed + 1",
            "output lines",
            28,
            29,
        ),
        ("DELETE FROM batchline.results WHERE line_no = 3", "output lines", 29, 28),
        ("DELETE FROM batchline.results WHERE line_no = 7", "errors lines", 1, 0),
        ("UPDATE batchline.batches SET failed = 0", "failed results", 0, 1),
    ],
)
async def test_a_file_that_does_not_match_the_counters_is_never_recorded(
    db: Session, objects: Objects, folder: Path, damage: str, what: str, expected: int, found: int
) -> None:
    batch = await a_finished_batch(db, 30, fail=lambda item: item.line_no == 7)
    await sql(db, damage)
    with pytest.raises(FinalizeMismatch) as caught:
        await finalize_one(db, objects, a_worker())
    error = caught.value
    assert (error.batch_id, error.what, error.expected, error.found) == (batch.id, what, expected, found)
    assert (await read(db, batch)).status is BatchStatus.FINALIZING
    assert stored_keys(folder) == await recorded_keys(db) == []


async def test_a_finalizer_that_loses_the_database_in_mid_stream_leaves_no_object(
    database_url: str, db: Session, folder: Path
) -> None:
    batch = await a_large_batch(db)
    held, worker = Held(folder), a_worker()
    async with Session(database_url, "finalizer") as own:
        work = asyncio.create_task(finalize_one(own, held, worker))
        await held.half_way.wait()
        await sql(
            db,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'batchline finalizer' AND datname = current_database()",
        )
        held.go_on.set()
        with pytest.raises(StoreUnavailable):
            await work
    assert stored_keys(folder) == []
    assert await finalizer_of(db, batch) is None
    await end_finalize_backoff(db)
    await ended(finalize_one(db, Objects.at(folder), a_worker()))


# --- Sweeping ----------------------------------------------------------------------------------------------


async def test_a_sweep_spares_what_is_recorded_what_is_young_and_what_may_yet_be_recorded(
    database_url: str, db: Session, objects: Objects, folder: Path
) -> None:
    await a_finished_batch(db, 3)
    await ended(finalize_one(db, objects, a_worker()))
    await a_finished_batch(db, 3)
    pause = Pause("uploaded")
    async with Session(database_url, "finalizer") as own:
        work = asyncio.create_task(finalize_one(own, objects, a_worker(), signals=pause))
        await pause.reached_it.wait()
        (folder / "outputs" / "stray").touch()
        assert await sweep_objects(db, objects, timedelta(hours=1)) == 0
        assert await sweep_objects(db, objects, AT_ONCE) == 1
        pause.go_on.set()
        await ended(work)
    assert stored_keys(folder) == await recorded_keys(db)
    assert len(stored_keys(folder)) == 2


async def test_a_sweep_removes_the_object_of_a_file_that_was_deleted(
    db: Session, objects: Objects, folder: Path
) -> None:
    await a_finished_batch(db, 3)
    await ended(finalize_one(db, objects, a_worker()))
    await sql(db, "DELETE FROM batchline.files WHERE object_key IS NOT NULL")
    assert await sweep_objects(db, objects, AT_ONCE) == 1
    assert stored_keys(folder) == []


# --- No lock over the upload -------------------------------------------------------------------------------

ACTIVITY = """
SELECT pid, state, xact_start IS NOT NULL
FROM pg_stat_activity
WHERE application_name = 'batchline finalizer' AND datname = current_database()
"""
SNAPSHOTS = """
SELECT 1
FROM pg_stat_activity AS activity
WHERE application_name = 'batchline finalizer'
  AND datname = current_database()
  AND (
      xact_start IS NOT NULL
      OR EXISTS (SELECT FROM pg_locks AS held WHERE held.pid = activity.pid AND held.relation IS NOT NULL)
  )
"""


async def only_one_finalizer(db: Session) -> bool:
    return len(await sql(db, ACTIVITY)) == 1


async def no_snapshot(db: Session) -> bool:
    """Whether the finalizer has no transaction open and no table locked."""
    return await sql(db, SNAPSHOTS) == []


async def idle_finalizer(db: Session) -> None:
    """Return once the finalizer has read one range more than its reader, and is idle."""

    async def idle() -> bool:
        ((_, state, in_transaction),) = await sql(db, ACTIVITY)
        return (state, in_transaction) == ("idle", False)

    await until(idle)


async def test_no_transaction_is_open_between_the_upload_and_the_commit(
    database_url: str, db: Session, objects: Objects
) -> None:
    await a_finished_batch(db)
    for point in ("claimed", "uploaded", "committing"):
        pause = Pause(point)
        async with Session(database_url, "finalizer") as own:
            work = asyncio.create_task(finalize_one(own, objects, a_worker(), signals=pause))
            await pause.reached_it.wait()
            # The connection of the one before may take a while to end.
            await until(partial(only_one_finalizer, db))
            ((_, state, in_transaction),) = await sql(db, ACTIVITY)
            assert (state, in_transaction) == ("idle", False), f"at {point}"
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work


async def test_no_snapshot_is_held_while_the_object_store_is_slow(
    database_url: str, db: Session, folder: Path
) -> None:
    """One would slow down every claim and settle for as long as the upload takes."""
    batch, held = await a_large_batch(db), Held(folder)
    async with Session(database_url, "finalizer") as own:
        work = asyncio.create_task(finalize_one(own, held, a_worker()))
        await held.half_way.wait()
        # It reads a range ahead of the upload, so it may be idle, read once more, and then be idle for good.
        await until(partial(no_snapshot, db))
        assert (await read(db, batch)).status is BatchStatus.FINALIZING
        held.go_on.set()
        await ended(work)


async def test_lines_that_are_suddenly_large_are_neither_all_kept_nor_read_by_one_long_statement(
    database_url: str, db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines before a range decide its width. A range that is much larger than expected is divided."""
    monkeypatch.setattr(outputs, "_RANGE", 400_000)
    monkeypatch.setattr(outputs, "_MAX_KEPT", 1_600_000)
    sizes: list[int] = []
    copied = outputs.LineBlocks._copied

    async def measured(self: outputs.LineBlocks, after: int, until: int) -> outputs._Range:
        found = await copied(self, after, until)
        sizes.append(sum(map(len, found.blocks)))
        return found

    monkeypatch.setattr(outputs.LineBlocks, "_copied", measured)
    batch = await a_large_batch(db)
    half = {"half": batch.total // 2}
    await sql(db, "UPDATE batchline.results SET output = '{}' WHERE line_no <= %(half)s", **half)
    async with Session(database_url, "finalizer") as own:
        lines = await outputs.lines(own, batch.id, "output")
        async with aclosing(aiter(lines)) as blocks:
            async for _ in blocks:
                await idle_finalizer(db)
        assert lines.count == batch.total
    ((size,),) = await sql(db, "SELECT sum(octet_length(output) + 1) FROM batchline.results")
    assert sum(sizes) == size
    assert max(sizes) <= 1_600_000


async def test_one_range_is_read_while_the_one_before_it_is_passed_on_and_no_more(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: asyncio.Queue[int] = asyncio.Queue()
    copied = outputs.LineBlocks._copied

    async def noted(self: outputs.LineBlocks, after: int, until: int) -> outputs._Range:
        found = await copied(self, after, until)
        read.put_nowait(after)
        return found

    monkeypatch.setattr(outputs.LineBlocks, "_copied", noted)
    batch = await a_large_batch(db)
    lines = await outputs.lines(db, batch.id, "output")
    async with aclosing(aiter(lines)) as blocks:
        await anext(blocks)
        assert [await read.get(), await read.get()] == [0, 1]
        assert lines.count == 1, "only lines that have been passed on should count"
        # Nothing more is read, so the session is free.
        await sql(db, "SELECT 1")
        assert read.empty()


@pytest.mark.parametrize("size", [1, 700, 10**9])
async def test_lines_are_the_same_whatever_the_size_of_a_range(
    db: Session, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    batch, worker = await a_batch(db, {"a": 200, "b": 40, "c": 3}), a_worker()
    # Empty lines of a file have numbers too.
    await sql(db, "UPDATE batchline.lines SET line_no = line_no + 500 WHERE line_no > 100")
    items = await take(db, worker, 150)
    verdicts = [failed(item) if n % 3 else completed(item) for n, item in enumerate(items)]
    await spans.settle(db, worker.id, verdicts)
    await batches.close(db, batch.id, "cancel")
    completed_lines = sorted(item.line_no for item in items[::3])
    monkeypatch.setattr(outputs, "_RANGE", size)
    given = [json.loads(line)["answer"] for line in await streamed(db, batch, "output")]
    assert given == completed_lines
    others = [json.loads(line) for line in await streamed(db, batch, "errors")]
    # The id of a line that never ran ends with its number; a failed one is as the builder made it.
    numbers = [int(one["id"].rsplit("_", 1)[1]) if "id" in one else one["error"] for one in others]
    every_line = {*range(1, 101), *range(601, 744)}
    assert numbers == sorted(every_line - set(completed_lines))


# --- Plans -------------------------------------------------------------------------------------------------

LOAD = """
INSERT INTO batchline.results
    (lane_id, line_no, ordinal, outcome, attempt, input_tokens, output_tokens, output)
SELECT n.id, l.line_no, l.ordinal, 'completed', 1, 0, 0, repeat('x', 400)
FROM batchline.lanes AS n
JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
ORDER BY l.line_no / 100, random()
"""


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("lanes", [{"a": 30_000}, {"a": 10_000, "b": 10_000, "c": 10_000}])
@pytest.mark.parametrize("which", ["output", "errors"])
async def test_a_range_reads_its_own_lines_and_no_others(
    db: Session, lanes: dict[str, int], analyzed: bool, which: Which
) -> None:
    await sql(db, "ALTER TABLE batchline.results SET (autovacuum_enabled = false)")
    for _ in range(2):
        batch = await a_batch(db, lanes)
    await sql(db, LOAD)
    if analyzed:
        await sql(db, "ANALYZE")
    if which == "errors":
        await batches.close(db, batch.id, "cancel")
    # Up to the middle, so that the cursors of lanes have moved.
    source = (await outputs.lines(db, batch.id, which))._source
    await source.passed(db, 0, 15_000)
    copy = source.query(15_000, 15_300).as_string(None)
    select = copy[copy.index("(") + 1 : copy.rindex(") TO STDOUT")]
    ((plans,),) = await sql(db, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {select}".replace("%", "%%"))
    plan = plans[0]["Plan"]
    assert plan["Actual Rows"] == (300 if which == "output" else 0)
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    # 300 rows and their index entries; for errors each line is looked up in results, too.
    assert pages < (500 if which == "output" else 2500), f"{pages} pages"


async def test_lines_of_one_lane_are_not_sorted(db: Session) -> None:
    """A sort of a few megabytes may spill to disk, and delays the first row."""
    batch = await a_batch(db, {"a": 5000})
    await sql(db, LOAD)
    # A bitmap scan, which needs a sort, is cheaper for few lines in no order.
    await sql(db, "SET enable_bitmapscan = off")
    copy = (await outputs.lines(db, batch.id, "output"))._source.query(1000, 3000).as_string(None)
    select = copy[copy.index("(") + 1 : copy.rindex(") TO STDOUT")]
    ((plans,),) = await sql(db, f"EXPLAIN (FORMAT json) {select}".replace("%", "%%"))
    assert plans[0]["Plan"]["Node Type"] == "Index Scan"
