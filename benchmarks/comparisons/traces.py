"""The processor time of a worker per line, with traces, against the same without.

`batchline worker --drain` runs a batch against `batchline simulate`, which answers at once. Traces go to a
server that reads and discards them, in the benchmark's own process. The time is that of the worker's process
alone, user and system, without that of a worker that finds nothing to do.
"""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from batchline.store.session import Session
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_most, ratio
from benchmarks.inputs import a_batch, fill_file
from benchmarks.processes import batchline, simulator

_ROUNDS = 5


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(60_000, quick=500)
    with bench.server.database() as url, simulator() as upstream, _collector() as endpoint:
        file_id = fill_file(url, lines)
        arguments = ("--upstream", upstream, "--database", url, "--data-dir", str(bench.scratch / "traces"))

        async def per_line(**settings: str) -> float:
            idle = _cpu_seconds(*arguments, **settings)
            async with Session(url, "benchmark") as session:
                await a_batch(session, file_id)
            bench.server.settle_down()
            return (_cpu_seconds(*arguments, **settings) - idle) * 1e6 / lines

        def contestant(name: str, **settings: str) -> Contestant:
            return Contestant(name, "µs of CPU per line", partial(per_line, **settings))

        traced = {"BATCHLINE_TRACES_ENDPOINT": endpoint, "BATCHLINE_TRACES_FIRST": "0"}
        off, some, all_ = await alternate(
            bench.size(_ROUNDS, quick=1),
            contestant("no traces"),
            contestant("one line in a hundred", **traced, BATCHLINE_TRACES_SAMPLE="0.01"),
            contestant("all lines", **traced, BATCHLINE_TRACES_SAMPLE="1"),
        )
    return [
        ratio(f"CPU per line of {lines:,}, one in a hundred traced", some, off, at_most(1.1)),
        ratio(f"CPU per line of {lines:,}, all traced", all_, off),
    ]


def _cpu_seconds(*arguments: str, **settings: str) -> float:
    """The processor time of a worker that runs all there is to do."""
    environment = {**os.environ, **settings, "NO_PROXY": "127.0.0.1"}
    worker = subprocess.Popen(batchline("worker", "--drain", "--quiet", *arguments), env=environment)
    _, status, used = os.wait4(worker.pid, 0)
    worker.returncode = os.waitstatus_to_exitcode(status)
    if worker.returncode != 0:
        raise RuntimeError(f"the worker ended with {worker.returncode}")
    return used.ru_utime + used.ru_stime


@contextmanager
def _collector() -> Iterator[str]:
    class Discarding(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Discarding)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
