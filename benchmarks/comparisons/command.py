"""`batchline run` as a whole command, from the start of its process to the finished file.

With an upstream that takes 50 ms, against the aiohttp script (`benchmarks/scripts`), and with one that
answers at once, against the bare client: all are measured from the start of their process to its end, with
256 in flight. The command uses a data folder that exists; each run starts and stops the database in it, and
is of a file whose lines it has not seen. Then the time until the first request: with a new data folder, whose
database must be made, against an existing one.
"""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_least, at_most, ratio
from benchmarks.contestants.environments import Unavailable, python_at
from benchmarks.inputs import write_jsonl
from benchmarks.processes import batchline, module, run, simulator

_LATENCY = 50
_IN_FLIGHT = 256
_ANSWER = b'{"object":"chat.completion","choices":[]}'


async def compare(bench: Bench) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="command-", dir=bench.scratch) as folder:
        runs = WholeRuns(Path(folder), bench.size(60_000, quick=500))
        with simulator() as upstream:
            runs.seconds(upstream)
        return [
            *await _against_the_script(bench, runs),
            await _against_the_client(bench, runs),
            await _until_the_first_request(bench, runs),
        ]


class WholeRuns:
    """Runs of the command over new lines, in one data folder."""

    def __init__(self, folder: Path, lines: int) -> None:
        self.folder = folder
        self.lines = lines
        self._numbers = count()

    def new_file(self) -> Path:
        """Lines that were not sent before: answers to others would be reused."""
        number = next(self._numbers)
        return write_jsonl(self.folder / f"{number}.jsonl", lines=self.lines, first=number * self.lines)

    def seconds(self, upstream: str, data_dir: Path | None = None) -> float:
        path = self.new_file()
        begun = perf_counter()
        run(self.command(path, upstream, data_dir))
        return perf_counter() - begun

    def command(self, path: Path, upstream: str, data_dir: Path | None = None) -> list[str]:
        return batchline(
            *("run", str(path), "--upstream", upstream, "--concurrency", str(_IN_FLIGHT), "--json"),
            *("--data-dir", str(data_dir or self.folder / "data"), "--output", str(path.with_suffix(".out"))),
        )


async def _against_the_script(bench: Bench, runs: WholeRuns) -> list[Figure]:
    try:
        python = python_at("scripts", "the environment of the scripts", make=not bench.quick)
    except Unavailable:
        return []

    async def ours() -> float:
        with simulator(_LATENCY) as upstream:
            return runs.lines / runs.seconds(upstream)

    async def theirs() -> float:
        path = runs.new_file()
        script = [str(python), "-m", "benchmarks.scripts.with_aiohttp"]
        with simulator(_LATENCY) as upstream:
            begun = perf_counter()
            run([*script, str(path), upstream, str(_IN_FLIGHT), str(path.with_suffix(".out"))])
            return runs.lines / (perf_counter() - begun)

    batchline_, script = await alternate(
        bench.rounds,
        Contestant("Batchline, the whole command", "requests/s", ours),
        Contestant("aiohttp script", "requests/s", theirs),
    )
    name = f"the whole command, {runs.lines:,} lines, upstream of {_LATENCY} ms, to the aiohttp script"
    return [ratio(name, batchline_, script, at_least(0.9))]


async def _against_the_client(bench: Bench, runs: WholeRuns) -> Figure:
    async def ours() -> float:
        with simulator() as upstream:
            return runs.lines / runs.seconds(upstream)

    async def bare() -> float:
        path = runs.new_file()
        with simulator() as upstream:
            begun = perf_counter()
            run(module("benchmarks.bare.client", str(path), upstream, str(_IN_FLIGHT)))
            return runs.lines / (perf_counter() - begun)

    batchline_, client = await alternate(
        bench.rounds,
        Contestant("Batchline, the whole command", "requests/s", ours),
        Contestant("bare client", "requests/s", bare),
    )
    return ratio(
        f"the whole command, {runs.lines:,} lines, instant upstream, to the bare client", batchline_, client
    )


async def _until_the_first_request(bench: Bench, runs: WholeRuns) -> Figure:
    few = WholeRuns(runs.folder / "few", 10)
    few.folder.mkdir()
    with first_request() as (upstream, _):
        few.seconds(upstream)

    async def existing() -> float:
        return _seconds_until_first(few, few.folder / "data")

    async def new() -> float:
        with tempfile.TemporaryDirectory(dir=few.folder) as folder:
            return _seconds_until_first(few, Path(folder, "data"))

    made, existed = await alternate(
        bench.rounds,
        Contestant("new data folder", "s", new),
        Contestant("existing data folder", "s", existing),
    )
    return ratio("seconds until the first request, new to existing data folder", made, existed, at_most(3.0))


def _seconds_until_first(runs: WholeRuns, data_dir: Path) -> float:
    with first_request() as (upstream, times):
        begun = perf_counter()
        runs.seconds(upstream, data_dir)
    return times[0] - begun


@contextmanager
def first_request() -> Iterator[tuple[str, list[float]]]:
    """An upstream that answers at once, and the times of its requests."""
    times: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(b'{"object":"list","data":[]}')

        def do_POST(self) -> None:
            times.append(perf_counter())
            self.rfile.read(int(self.headers["content-length"]))
            self._answer(_ANSWER)

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", times
        finally:
            server.shutdown()
            serving.join()
