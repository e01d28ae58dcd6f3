"""Five workers with wrong clocks run one schedule, and are killed: each second becomes exactly one batch."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import psycopg

from tests.support.processes import PYTHON
from tests.support.repository import ROOT
from tests.support.waiting import LIMIT, wait_for

# By how many seconds each wall clock is off, and how fast each steady clock runs.
CLOCKS = ((0.0, 1.0), (7200.0, 1.0), (-86_400.0, 1.3), (5.0, 0.7), (31_536_000.0, 1.0))
SECOND = timedelta(seconds=1)
TIMES = """
SELECT metadata ->> 'scheduled_at', total, completed, ended_at IS NOT NULL FROM batchline.current_batches
"""
# A worker that is killed while it runs the schedule has it for a lease.
PATIENCE = 2 * LIMIT


@contextmanager
def working(clock: tuple[float, float], database: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [PYTHON, "-m", "tests.support.scheduled_app", *map(str, clock), database, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(LIMIT)


def test_each_second_becomes_one_batch_whichever_worker_runs_it_and_whatever_its_clock_says(
    database_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(database_url, autocommit=True) as db, ExitStack() as stack:

        def count() -> int:
            (found,) = db.execute("SELECT count(*) FROM batchline.batches").fetchone() or (0,)
            return int(found)

        def wait_for_more() -> None:
            before = count()
            wait_for("more batches", lambda: count() >= before + 4, PATIENCE)

        workers = [stack.enter_context(working(clock, database_url, tmp_path)) for clock in CLOCKS]
        wait_for("five batches", lambda: count() >= 5, PATIENCE)
        for killed in workers[:2]:
            killed.kill()
            killed.wait(LIMIT)
            wait_for_more()
        stack.enter_context(working(CLOCKS[0], database_url, tmp_path))
        wait_for_more()

        def count_ended() -> int:
            return sum(ended for *_, ended in db.execute(TIMES).fetchall())

        # The schedule goes on meanwhile.
        before = count()
        wait_for("as many batches that have ended", lambda: count_ended() >= before, PATIENCE)
        rows = db.execute(TIMES).fetchall()
    times = sorted(datetime.fromisoformat(time) for time, *_ in rows)
    assert [later - earlier for earlier, later in pairwise(times)] == [SECOND] * (len(times) - 1)
    assert {(total, completed) for _, total, completed, ended in rows if ended} == {(1, 1)}
