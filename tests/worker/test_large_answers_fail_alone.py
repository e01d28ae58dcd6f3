"""Large answers and requests cost bounded memory, and stop nobody: what cannot be taken fails alone."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Completed, Item, Retried, Settled, Verdict, ids
from batchline.store import spans
from batchline.store.arrays import TextArray
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import OnLate, Scope
from batchline.store.statements import Statement
from batchline.upstreams.http_upstream import HttpSettings
from batchline.upstreams.memory import MIB, MIN_HELD, BodyMemory, Share
from batchline.worker.lease import Lease
from batchline.worker.settler import Settler
from batchline.worker.worker import Worker, WorkerOptions
from chaos.proxy import Proxy
from tests.support import operation_executor as operations
from tests.support.builders import a_batch, a_worker, completed, read, sql, take, until
from tests.support.executors import Answering
from tests.support.http_executor import an_executor, an_item, line_of
from tests.support.processes import batchline, kill, simulated, working, write_requests
from tests.support.scripted_upstream import answers, http, says, upstream_that
from tests.support.waiting import wait_for

KIB = 1024


def large(item: Item, size: int) -> Completed:
    return Completed(item, 200, b'{"answer":"%b"}' % (b"x" * size))


async def failures(db: Session) -> dict[int, Any]:
    """The codes of lines that failed, by their numbers."""
    rows = await sql(db, "SELECT line_no, output FROM batchline.results WHERE outcome = 'failed'")
    return {line_no: json.loads(output)["error"]["code"] for line_no, output in rows}


# --- Settles -----------------------------------------------------------------------------------------------


class Settling:
    """A settler at work for one worker that holds a whole batch."""

    def __init__(self, db: Session, settings: WorkerSettings) -> None:
        self.memory = BodyMemory(settings.body_memory)
        lease = Lease(settings, asyncio.get_running_loop().time, lambda: 0)
        self.worker = lease.worker
        self.settler = Settler(db, lease, settings, self.memory, self._settled)
        self.ended = 0

    def _settled(self, settled: Sequence[Settled], earliest_retry: float | None) -> None:
        self.ended += sum(row.ended for row in settled)

    async def settle(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            self.settler.add(verdict)
        self.settler.stop()
        async with asyncio.timeout(120):
            await self.settler.run()


async def test_the_bytes_of_a_settle_are_limited(db: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[list[int]] = []
    true_settle = spans.settle

    async def settle(
        session: Session, worker_id: UUID, verdicts: Sequence[Verdict], on_late: OnLate
    ) -> list[Settled]:
        sizes.append([len(verdict.output) for verdict in verdicts if isinstance(verdict, Completed)])
        return await true_settle(session, worker_id, verdicts, on_late)

    monkeypatch.setattr(spans, "settle", settle)
    settling = Settling(db, WorkerSettings(settle_max_bytes=100 * KIB))
    await a_batch(db, 60)
    items = await take(db, settling.worker)
    answered = [large(item, 250 * KIB if item.line_no % 20 == 0 else 12 * KIB) for item in items]
    await settling.settle(answered)
    assert settling.ended == 60
    assert (settling.memory.held_small, settling.memory.held_large) == (0, 0)
    assert max(len(sent) for sent in sizes) > 5
    for sent in sizes:
        assert len(sent) == 1 or sum(sent) <= 100 * KIB


async def test_a_value_that_the_driver_cannot_send_fails_its_line_alone(db: Session) -> None:
    settling = Settling(db, WorkerSettings())
    await a_batch(db, 10)
    items = await take(db, settling.worker)
    verdicts = [completed(item) for item in items]
    # No smallint, and no bytes; and one that the server refuses.
    verdicts[3] = Completed(items[3], 70_000, b"{}")
    verdicts[7] = Completed(items[7], 200, "text")  # type: ignore[arg-type]
    verdicts[8] = Completed(items[8], 200, b"\xff")
    await settling.settle(verdicts)
    assert settling.ended == 10
    lines = {items[n].line_no for n in (3, 7, 8)}
    assert await failures(db) == dict.fromkeys(lines, "result_refused")


REFUSES_OUTCOMES = """
CREATE FUNCTION refuse_outcomes() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'numeric_value_out_of_range'; END$$;
CREATE TRIGGER refuse_outcomes BEFORE INSERT ON batchline.results
FOR EACH ROW WHEN (NEW.line_no = 3) EXECUTE FUNCTION refuse_outcomes();
"""


async def test_an_item_on_which_no_outcome_can_be_stored_is_given_back(db: Session) -> None:
    await sql(db, REFUSES_OUTCOMES)
    settling = Settling(db, WorkerSettings())
    await a_batch(db, 5)
    items = await take(db, settling.worker)
    await settling.settle([completed(item) for item in items])
    assert settling.ended == 4
    found = await sql(db, "SELECT outstanding::text, worker_id, available_at > now() FROM batchline.spans")
    assert found == [("{[2,3)}", None, True)]


ENDS_THE_CONNECTION = """
CREATE FUNCTION end_the_connection() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_terminate_backend(pg_backend_pid());
    RETURN NEW;
END $$;
CREATE TRIGGER end_the_connection BEFORE INSERT ON batchline.results
FOR EACH ROW WHEN (octet_length(NEW.output) > 50000) EXECUTE FUNCTION end_the_connection();
"""


async def test_a_large_result_that_ends_the_connection_each_time_fails_alone(db: Session) -> None:
    """As a message does that is longer than PostgreSQL takes."""
    await sql(db, ENDS_THE_CONNECTION)
    settling = Settling(db, WorkerSettings(settle_max_bytes=40_000))
    await a_batch(db, 30)
    items = await take(db, settling.worker)
    await settling.settle([large(item, 60_000) if item.line_no == 7 else completed(item) for item in items])
    assert settling.ended == 30
    assert await failures(db) == {7: "result_refused"}


# --- Statements that are cancelled while they are sent -----------------------------------------------------


@asynccontextmanager
async def slow_line(database_url: str, timeout: float) -> AsyncIterator[Session]:
    """On a session whose statements take for ever to be sent."""
    location = conninfo_to_dict(database_url)
    if not str(location.get("host", "")).startswith("/"):
        pytest.skip("the proxy stands in front of a socket of this machine")

    proxy = Proxy(Path(str(location["host"]), f".s.PGSQL.{location.get('port', 5432)}"))
    await proxy.start()
    try:
        behind = make_conninfo(database_url, host="127.0.0.1", port=proxy.port, sslmode="disable")
        async with Session(behind, "slow") as session:
            # From now on it is prepared: all of it goes out at once.
            await send(session, 1)
            session._timeout = timeout
            proxy.delay = 3600.0
            yield session
    finally:
        await proxy.stop()


async def send(session: Session, size: int) -> None:
    statement = Statement("much", "SELECT cardinality(%(much)s::text[])")
    await session.rows(statement, {"much": TextArray([b"x" * size])})


async def test_a_statement_that_is_not_sent_in_time_is_a_database_that_does_not_answer(
    database_url: str,
) -> None:
    async with slow_line(database_url, 1.0) as session:
        with pytest.raises(StoreUnavailable, match="did not answer within 1 s"):
            await send(session, 64 * MIB)


async def test_a_task_that_is_cancelled_during_a_statement_ends(database_url: str) -> None:
    async with slow_line(database_url, 60.0) as session:
        task = asyncio.create_task(send(session, 64 * MIB))
        done, _ = await asyncio.wait([task], timeout=0.5)
        assert not done
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


# --- Answers -----------------------------------------------------------------------------------------------


def in_chunks(body: bytes) -> bytes:
    """An answer that does not say how long it is."""
    chunks = [body[start : start + 50_000] for start in range(0, len(body), 50_000)]
    return b"".join(
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
        + [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b"")]
    )


@pytest.mark.parametrize("chunked", [False, True])
async def test_answers_that_together_exceed_the_memory_are_all_received(chunked: bool) -> None:
    """All of them are half-read when there is no room for any: one after the other comes through."""
    body = b'{"said":"%b"}' % (b"x" * 3 * MIB)
    memory = BodyMemory(24 * MIB, runners=20, largest=4 * MIB)
    maximum = 0
    received = 0
    behaviour = says(in_chunks(body)) if chunked else answers(200, body)
    async with upstream_that(behaviour) as upstream, an_executor(memory=memory) as executor:

        async def one(line_no: int) -> None:
            nonlocal received, maximum
            verdict = await executor.run(an_item(upstream.url, line_no=line_no, timeout=600))
            # As the settler does.
            assert isinstance(verdict, Completed)
            memory.hold(len(verdict.output))
            maximum = max(maximum, memory.held_large)
            await asyncio.sleep(0)
            memory.free(len(verdict.output))
            received += 1

        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            for line_no in range(1, 21):
                tasks.create_task(one(line_no))
    assert received == 20
    assert memory.held_large == 0
    assert maximum <= 12 * MIB + 1000


async def test_answers_that_stall_half_read_do_not_hold_the_memory_for_long() -> None:
    """They hold all there is for large answers, and another upstream's large answer waits for it."""
    full = asyncio.Event()

    class Watched(BodyMemory):
        def _give(self, share: Share, size: int) -> None:
            super()._give(share, size)
            if self.held_large >= 8 * MIB:
                full.set()

    body = b'{"said":"%b"}' % (b"x" * 3 * MIB)
    memory = Watched(24 * MIB, runners=20, largest=4 * MIB)
    stalls = says(http(200, body)[: -MIB // 2])
    async with (
        upstream_that(stalls) as stalled,
        upstream_that(answers(200, body)) as healthy,
        an_executor(HttpSettings(piece_timeout=3.0), memory=memory) as impatient,
        an_executor(memory=memory) as executor,
    ):
        stuck = [
            asyncio.create_task(impatient.run(an_item(stalled.url, line_no=n, timeout=600)))
            for n in range(1, 9)
        ]
        async with asyncio.timeout(120):
            await full.wait()
            assert isinstance(await executor.run(an_item(healthy.url, timeout=600)), Completed)
            verdicts = await asyncio.gather(*stuck)
    codes = {verdict.error_code for verdict in verdicts if isinstance(verdict, Retried)}
    assert codes == {"response_stalled"}
    assert memory.held_large == 0


async def test_an_answer_that_is_larger_than_the_memory_fails_its_line() -> None:
    memory = BodyMemory(5 * MIB)
    body = b'{"said":"%b"}' % (b"x" * 3 * MIB)
    async with (
        upstream_that(answers(200, body), says(in_chunks(body)), answers(200, b"{}")) as upstream,
        an_executor(HttpSettings(), memory=memory) as executor,
    ):
        verdicts = [await executor.run(an_item(upstream.url, attempt=1)) for _ in range(3)]
        assert memory.held_large == 0
        *failed, good = verdicts
    assert [line_of(verdict)["error"]["code"] for verdict in failed] == ["response_too_large"] * 2
    assert isinstance(good, Completed)


async def test_small_answers_do_not_wait_for_large_ones() -> None:
    memory = BodyMemory(64 * MIB)
    memory.hold(32 * MIB)
    async with upstream_that(answers(200, b"{}")) as upstream, an_executor(memory=memory) as executor:
        async with asyncio.timeout(120):
            assert isinstance(await executor.run(an_item(upstream.url, timeout=600)), Completed)


async def test_nothing_is_sent_while_too_many_tiny_answers_wait_to_be_settled() -> None:
    """Each takes more memory than its bytes."""
    memory = BodyMemory(16 * MIB)
    maximum = 2 * MIB // MIN_HELD
    for _ in range(maximum + 1):
        memory.hold(1)
    assert memory.crowded
    waiting = asyncio.create_task(memory.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    memory.free(1)
    async with asyncio.timeout(120):
        await waiting
    for _ in range(maximum):
        memory.free(1)
    assert memory.held_small == 0


async def test_an_answer_that_is_abandoned_while_it_waits_lets_the_next_one_continue() -> None:
    memory = BodyMemory(32 * MIB, largest=4 * MIB)
    memory.hold(11 * MIB)
    using_the_reserve, first, second = memory.share(), memory.share(), memory.share()
    with using_the_reserve, second:
        await using_the_reserve.grow(2 * MIB)
        waiting = asyncio.create_task(first.grow(2 * MIB))
        next_one = asyncio.create_task(second.grow(MIB))
        await asyncio.sleep(0)
        memory.free(2 * MIB)
        await asyncio.sleep(0)
        assert not next_one.done(), "it is not its turn"
        waiting.cancel()
        async with asyncio.timeout(120):
            await next_one
    assert memory.held_large == 9 * MIB


def test_an_answer_to_an_operation_is_bounded_before_it_is_decoded() -> None:
    verdict = operations.failure(answers(200, b"[%b{}]" % (b"{}," * (2 * MIB))))
    assert operations.code_of(verdict) == "response_too_large"


# --- Back-pressure -----------------------------------------------------------------------------------------


class AnsweringAtLength(Answering):
    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    async def run(self, item: Item) -> Verdict:
        await super().run(item)
        return large(item, self._size)


@asynccontextmanager
async def at_work(url: str, folder: Path, executor: Answering, memory: BodyMemory) -> AsyncIterator[None]:
    settings = WorkerSettings(concurrency=8)
    worker = Worker(url, executor, Objects.at(folder), settings, Scope(), WorkerOptions(memory=memory))
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def test_nothing_is_sent_while_too_much_waits_to_be_settled(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    async def is_done(db: Session, batch_id: UUID) -> bool:
        return (await read(db, batch_id)).completed == 400

    executor = AnsweringAtLength(16 * KIB)
    memory = BodyMemory(16 * MIB)
    async with (
        await psycopg.AsyncConnection.connect(database_url) as other,
        at_work(database_url, tmp_path, executor, memory),
    ):
        # Every settle waits for this.
        await other.execute("LOCK TABLE batchline.results")
        batch = await a_batch(db, 400)
        await until(lambda: asyncio.sleep(0, memory.crowded))
        for _ in range(100):
            await asyncio.sleep(0)
        # 2 MiB, and those that were under way.
        assert len(executor.sent) <= 128 + 8 + 1
        await other.rollback()
        await until(lambda: is_done(db, batch.id))
    assert len(executor.sent) == 400


# --- Requests ----------------------------------------------------------------------------------------------


class Holding(Answering):
    """Remembers how many bytes of requests were in flight at once."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0
        self.maximum: list[tuple[int, int]] = [(0, 0)]
        self._count = 0

    async def run(self, item: Item) -> Verdict:
        self._bytes += len(item.body)
        self._count += 1
        self.maximum.append((self._bytes, self._count))
        # As long as an upstream takes, so that as many requests as are allowed are in flight at once.
        await asyncio.sleep(0.01)
        self._bytes -= len(item.body)
        self._count -= 1
        return await super().run(item)


async def test_claims_bring_only_as_many_bytes_as_fit_into_memory(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    async def is_done(db: Session, batch_id: UUID) -> bool:
        return (await read(db, batch_id)).completed == 60

    executor = Holding()
    batch = await a_batch(db, 60)
    # Of 0, 1 and 2 MiB, and one of 9.
    mib = "CASE line_no WHEN 50 THEN 9 ELSE line_no %% 3 END"
    await sql(db, f"UPDATE batchline.lines SET body = repeat('x', {mib} * 1048576)")
    async with at_work(database_url, tmp_path, executor, BodyMemory(16 * MIB)):
        await until(lambda: is_done(db, batch.id))
    assert executor.lines == list(range(1, 61)), "each line should be sent once"
    for size, count in executor.maximum:
        assert size <= 4 * MIB or count == 1
    assert max(size for size, _ in executor.maximum) == 9 * MIB


async def test_a_fetch_leaves_out_what_is_too_large_and_says_how_large_it_is(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 4)
    await sql(db, "UPDATE batchline.lines SET body = repeat('ä', 1000) WHERE line_no = 3")
    claims = await spans.claim(db, worker, Scope(), 4)
    items = await spans.fetch(db, worker.id, claims, 400)
    assert [(item.line_no, len(item.body), item.left_out) for item in items] == [
        (1, 11, 0),
        (2, 11, 0),
        (3, 0, 2000),
        (4, 11, 0),
    ]
    assert [len(item.body) for item in await spans.fetch(db, worker.id, claims)] == [11, 11, 2000, 11]


# --- A real worker -----------------------------------------------------------------------------------------

# Besides the setting: the program itself, first pieces and buffers of 24 connections, and copies of one
# answer while it is judged, settled and written to the output file. 24 answers are more than twice the limit.
ANSWER = 24 * MIB
OVERHEAD = 100 * MIB + 4 * ANSWER


def peak_memory(pid: int) -> int:
    status = Path("/proc", str(pid), "status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * KIB


@pytest.mark.attack
@pytest.mark.timeout(900)
def test_many_large_answers_delay_no_others_and_stay_within_the_memory_limit(
    database_url: str, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))

    def submit(name: str, count: int, upstream: str) -> UUID:
        inputs = write_requests(tmp_path / name, count)
        done = batchline("submit", str(inputs), "--upstream", upstream, "--json", *location)
        assert done.returncode == 0, done.stderr
        batch_id = ids.read(ids.BATCH, json.loads(done.stdout)["id"])
        assert batch_id is not None
        return batch_id

    with (
        psycopg.connect(database_url, autocommit=True) as db,
        simulated("--answer-bytes", str(ANSWER)) as images,
        simulated() as texts,
        working(database_url, tmp_path / "data", "-c", "24", "--body-memory", "256") as worker,
    ):

        def counts(batch_id: UUID) -> tuple[int, int, bool]:
            """Completed, failed, and whether it has ended."""
            columns = "completed, failed, completed_at IS NOT NULL"
            query = f"SELECT {columns} FROM batchline.current_batches WHERE id = %s".encode()
            row = db.execute(query, (batch_id,)).fetchone()
            assert row is not None
            return row

        many = submit("images.jsonl", 32, images.url)
        wait_for("answers under way", lambda: images.stats()["executed"] >= 24)
        other = submit("texts.jsonl", 300, texts.url)
        wait_for("the other batch", lambda: counts(other) == (300, 0, True), limit=300)
        wait_for("all large answers", lambda: counts(many)[2], limit=500)
        assert counts(many) == (32, 0, True)
        order = db.execute("SELECT id FROM batchline.batches ORDER BY completed_at").fetchall()
        assert order == [(other,), (many,)], "the other batch should end while large answers still come"
        assert worker.poll() is None
        assert peak_memory(worker.pid) < 256 * MIB + OVERHEAD
        _, log = kill(worker)
        assert "Traceback" not in log
