"""`batchline run`, against the scripts that people write and against the bare HTTP client.

All send the same lines to `batchline simulate`, which answers at once, after 50 ms or after a second, with 64
to 2,000 requests in flight. The scripts (`benchmarks/scripts`) are asyncio with a semaphore, one with aiohttp
and one with httpx, in an environment of their own; they append each answer to a file, and after a crash they
know nothing. The bare client (`benchmarks/bare/client.py`) is a pyreqwest loop that throws answers away. For
`batchline run` it is the batch's own time, from its start to its last settle. Each turn has its own simulator
on the same machine, and httpx is given a tenth of the lines where it would take minutes.

How fast one can be at all is what the latency allows: 64 in flight and 50 ms make 1,280 requests a second.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.comparisons.run import run_batch
from benchmarks.contest import Contestant, Figure, alternate
from benchmarks.contestants.environments import Unavailable, python_at
from benchmarks.inputs import write_jsonl
from benchmarks.processes import output_of, run, simulator


@dataclass(frozen=True, slots=True)
class _Setting:
    # In milliseconds.
    latency: int
    concurrency: int
    lines: int
    httpx_lines: int

    @property
    def name(self) -> str:
        return f"latency {self.latency:,} ms, {self.concurrency:,} in flight"


_SETTINGS = (
    _Setting(0, 64, 20_000, 2_000),
    _Setting(0, 2_000, 20_000, 2_000),
    _Setting(50, 64, 8_000, 2_000),
    _Setting(50, 2_000, 40_000, 2_000),
    _Setting(1_000, 64, 320, 320),
    _Setting(1_000, 2_000, 12_000, 4_000),
)
_QUICK = (_Setting(0, 64, 300, 100),)


async def compare(bench: Bench) -> list[Figure]:
    try:
        python = python_at("scripts", "the environment of the scripts", make=not bench.quick)
        missing = ""
    except Unavailable as error:
        python, missing = None, str(error)
    figures: list[Figure] = []
    for setting in _QUICK if bench.quick else _SETTINGS:
        figures += await _at(bench, setting, python, missing)
    return figures


async def _at(bench: Bench, setting: _Setting, python: Path | None, missing: str) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="scripts-", dir=bench.scratch) as folder:
        path = write_jsonl(Path(folder, "many.jsonl"), lines=setting.lines)
        fewer = write_jsonl(Path(folder, "fewer.jsonl"), lines=setting.httpx_lines)
        in_flight = str(setting.concurrency)

        async def batchline() -> float:
            with simulator(setting.latency) as upstream:
                seconds, _ = await asyncio.to_thread(
                    run_batch, bench.scratch, path, upstream, setting.concurrency
                )
            return setting.lines / seconds

        async def bare() -> float:
            with simulator(setting.latency) as upstream:
                return float(
                    await asyncio.to_thread(
                        output_of, "benchmarks.bare.client", str(path), upstream, in_flight
                    )
                )

        async def script(module: str, lines: Path) -> float:
            with simulator(setting.latency) as upstream, tempfile.NamedTemporaryFile(dir=folder) as output:
                command = [str(python), "-m", module, str(lines), upstream, in_flight, output.name]
                return float(await asyncio.to_thread(run, command))

        contestants = [
            Contestant("Batchline", "requests/s", batchline),
            Contestant("bare client", "requests/s", bare),
        ]
        if python is not None:
            contestants += [
                Contestant(
                    "aiohttp script", "requests/s", lambda: script("benchmarks.scripts.with_aiohttp", path)
                ),
                Contestant(
                    "httpx script", "requests/s", lambda: script("benchmarks.scripts.with_httpx", fewer)
                ),
            ]
        series = await alternate(bench.rounds, *contestants)
    ours, _, *scripts = series
    if not scripts:
        return [Figure(setting.name, ours.median, "requests/s", None, series, missing)]
    aiohttp, _ = scripts
    return [Figure(f"{setting.name}, to the aiohttp script", ours.median / aiohttp.median, "×", None, series)]
