"""Adopting a database with one row per request, and going back: how long that takes, and what is lost.

1,000,000 requests in four batches of one file each: 60 % completed with an answer of about 600 bytes, 1 %
failed, 100 in flight, the rest pending. The 100 were sent by a daemon that died. While `adopt prepare` runs,
an old writer goes on: it completes 50 requests per transaction and then pauses for 100 ms. It stops for the
cutover. Then `batchline worker` runs 100,000 items, `adopt rollback` writes them back, and an old daemon runs
the rest. The window is the time in which the old tables are locked. The writer's rate alone is measured
before prepare.

All requests go to one `batchline simulate`. Its ledger of executions is compared with the requests that were
unfinished at the cutover. Lost: never executed. Doubled: executed twice, or executed although finished
before. Only what the dead daemon had sent may be doubled, and the cutover lists it.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from urllib.request import urlopen

import msgspec
import psycopg

from batchline.adopt import phases, verification
from batchline.store.adoption.records import CutoverSettings
from batchline.store.session import Session
from benchmarks import old_system
from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, at_most, ratio
from benchmarks.processes import batchline, run, simulator

_BATCHES = 4

_MARK_FINISHED = """
CREATE TABLE ledger_finished AS
SELECT template_id AS id FROM requests WHERE state IN ('completed', 'failed')
"""
_COMPARE = """
SELECT
    count(*) FILTER (WHERE f.id IS NULL AND e.times IS NULL) AS lost,
    coalesce(
        array_agg(b.id || ' ' || t.custom_id) FILTER (WHERE e.times > 1 OR f.id IS NOT NULL AND e.times > 0),
        '{}'
    ) AS doubled
FROM request_templates AS t
JOIN batches AS b ON b.file_id = t.file_id
LEFT JOIN ledger_finished AS f ON f.id = t.id
LEFT JOIN (SELECT sha256, count(*) AS times FROM ledger_executed GROUP BY sha256) AS e
    ON e.sha256 = encode(sha256(convert_to(t.body, 'UTF8')), 'hex')
"""
_LEFT = "SELECT count(*) FROM requests WHERE state NOT IN ('completed', 'failed')"


class _LedgerEntry(msgspec.Struct):
    sha256: str


@dataclass(frozen=True, slots=True)
class _Ledger:
    """What the upstream executed, compared with what was to be executed."""

    lost: int
    doubled: set[str]


async def compare(bench: Bench) -> list[Figure]:
    requests = bench.size(1_000_000, quick=8_000)
    with bench.server.database() as url, simulator(record=True) as upstream:
        old_system.fill(url, _BATCHES, requests // _BATCHES)
        bench.server.settle_down()
        alone = await _written(url, 0.2 if bench.quick else 5.0)
        await old_system.send_in_flight(url, upstream)
        async with Session(url, "benchmark", timeout=3600) as session:
            with old_system.Writer(url) as writer:
                begun = perf_counter()
                await phases.prepare(session, "public")
                prepare = perf_counter() - begun
            during = writer.rows / prepare
            _execute(url, _MARK_FINISHED)
            cutover = await phases.cut_over(session, CutoverSettings("default", False, upstream, 86_400.0))
            assert (await verification.verify(session, one_in=100)).findings == []
            _work(url, bench.scratch, requests // 10)
            back = await phases.roll_back(session)
        assert back.results == requests // 10, back.results
        await old_system.work(url, upstream)
        ledger = _ledger(url, upstream)
    sent = {f"{one.batch_id} {one.custom_id}" for one in cutover.possibly_sent}
    series = {
        name: Series(name, unit, [value])
        for name, unit, value in (
            ("prepare", "s", prepare),
            ("locked window of the cutover", "s", cutover.seconds),
            (f"rollback of {back.results:,} results", "s", back.seconds),
            ("writer during prepare", "rows/s", during),
            ("writer alone", "rows/s", alone),
        )
    }
    prepared, window, rolled_back, meanwhile, undisturbed = series.values()
    return [
        ratio(f"{requests:,} requests: the locked window, to prepare", window, prepared),
        ratio(f"{requests:,} requests: rollback, to prepare", rolled_back, prepared),
        ratio("the old writer during prepare, to the same alone", meanwhile, undisturbed),
        Figure("lost, by the upstream's ledger", ledger.lost, "requests", at_most(0), []),
        Figure("doubled and not listed", len(ledger.doubled - sent), "requests", at_most(0), []),
        Figure("doubled and listed by the cutover", len(ledger.doubled & sent), "requests", None, []),
    ]


async def _written(url: str, seconds: float) -> float:
    with old_system.Writer(url) as writer:
        await asyncio.sleep(seconds)
    return writer.rows / seconds


def _work(url: str, scratch: Path, items: int) -> None:
    """Run a worker until it has run so many items."""
    location = ("--database", url, "--data-dir", str(scratch / "data"))
    run(batchline("worker", "--max-items", str(items), "--concurrency", "64", *location))


def _ledger(url: str, upstream: str) -> _Ledger:
    with psycopg.connect(url, autocommit=True) as connection, urlopen(f"{upstream}/executions") as response:
        connection.execute("CREATE TABLE ledger_executed (sha256 text NOT NULL)")
        decode = msgspec.json.Decoder(_LedgerEntry).decode
        with connection.cursor() as cursor, cursor.copy("COPY ledger_executed FROM STDIN") as copy:
            for line in response:
                copy.write_row((decode(line).sha256,))
        assert connection.execute(_LEFT.encode()).fetchone() == (0,)
        row = connection.execute(_COMPARE.encode()).fetchone()
    assert row is not None
    return _Ledger(row[0], set(row[1]))


def _execute(url: str, query: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(query.encode())
