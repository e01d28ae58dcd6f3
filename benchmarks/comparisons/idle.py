"""Queries that an idle worker sends.

`batchline worker` uses a separate server that logs every statement. The statements of the worker's
connections are counted over three minutes, from 45 seconds after its first poll. Maintenance tasks are due
every five to ten minutes, for all workers together, so none runs in that time. Afterwards all are made due at
once, and their statements are counted too. A second figure spreads them over seven and a half minutes, for a
single worker.
"""

import re
import time
from collections import Counter

from psycopg import sql

from batchline.store import migrate
from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, at_most
from benchmarks.processes import worker
from benchmarks.server import BenchServer, a_server, execute

_LOGGED = re.compile(
    r"^<batchline [^>]*> LOG: +(?:statement|execute [^:]*): (?:/\* (\w+) \*/)?", re.MULTILINE
)
# An idle worker polls every 15 to 18 s.
_LONGEST_POLL = 20
_LONGEST_START = 120
_MAINTENANCE_EVERY = 7.5


async def compare(bench: Bench) -> list[Figure]:
    window = bench.size(180, quick=4)
    idle, maintenance = _watch(bench, window)
    a_minute = sum(idle.values()) / (window / 60)
    with_maintenance = a_minute + sum(maintenance.values()) / _MAINTENANCE_EVERY
    return [
        Figure("queries per minute of an idle worker", a_minute, "", at_most(4), _series(idle)),
        Figure(
            "the same, with all duties done by it alone", with_maintenance, "", None, _series(maintenance)
        ),
    ]


def _watch(bench: Bench, window: float) -> tuple[Counter[str], Counter[str]]:
    """Count the worker's statements while it is idle, and the additional ones when maintenance is due."""
    folder = bench.scratch / "idle"
    with a_server(folder, log_statement="all", log_line_prefix="<%a> ") as server:
        migrate.ensure(server.url)
        with worker(server.url, folder):
            _wait_for_a_poll(server)
            time.sleep(bench.size(45, quick=3))
            idle = _counted(server, window)
            execute(server.url, sql.SQL("UPDATE batchline.maintenance_tasks SET due_at = now()"))
            maintenance = _counted(server, bench.size(_LONGEST_POLL, quick=7))
    del maintenance["poll"]
    return idle, maintenance


def _wait_for_a_poll(server: BenchServer) -> None:
    """Wait for the first poll: on a busy machine a worker starts slowly, and is not idle before."""
    deadline = time.monotonic() + _LONGEST_START
    while "poll" not in _LOGGED.findall(server.log.read_text(errors="replace")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker did not poll within {_LONGEST_START} s")
        time.sleep(0.2)


def _counted(server: BenchServer, seconds: float) -> Counter[str]:
    """Count the worker's statements in this time, by name."""
    before = server.log.stat().st_size
    time.sleep(seconds)
    with server.log.open("rb") as log:
        log.seek(before)
        names = _LOGGED.findall(log.read().decode())
    return Counter(name or "other" for name in names)


def _series(counts: Counter[str]) -> list[Series]:
    return [Series(f"`{name}`", "queries", [float(count)]) for name, count in counts.most_common()]
