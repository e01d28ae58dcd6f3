"""`batchline run`, against the scripts that people write and against the bare HTTP client.

All send the same kind of lines to `batchline simulate`, which answers at once, after 50 ms or after a second,
with 64 to 2,000 requests in flight. The scripts (`benchmarks/scripts`) use asyncio with a semaphore, one with
aiohttp and one with httpx, in a separate environment. They append each answer to a file, and cannot resume
after a crash. The bare client (`benchmarks/bare/client.py`) is a pyreqwest loop that discards the answers.
For `batchline run` the time is that of the batch, from its start to its last settle. There is one simulator
per latency, which forgets everything before each turn. Each contestant gets as many lines as take it about
two seconds, as the rows say, but at least as many as are in flight. The httpx script gets slower with more
requests in flight (its pool checks every connection for every request), so it takes part only up to 256; with
2,000 a turn would take minutes.

The latency limits the rate: 64 in flight and 50 ms allow 1,280 requests per second.
"""

import math
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.comparisons.run import run_batch
from benchmarks.contest import Contestant, Figure, Series, alternate
from benchmarks.contestants.environments import Unavailable, python_at
from benchmarks.inputs import write_jsonl
from benchmarks.numbers import number
from benchmarks.processes import output_of, run, simulator

_LATENCIES = (0, 50, 1_000)
_CONCURRENCIES = (64, 256, 1_000, 2_000)
_SECONDS = 2.0

# Sends the lines of a file to an upstream with a number in flight; returns requests per second.
Send = Callable[[Path, str, int], float]


@dataclass(frozen=True, slots=True)
class ScriptSender:
    name: str
    # Approximate requests per second without other limits. It only determines the number of lines.
    fastest: int
    send: Send
    # It does not take part with more in flight.
    max_in_flight: int = 2_000


@dataclass(frozen=True, slots=True)
class ScriptSetting:
    # In milliseconds.
    latency: int
    concurrency: int

    @property
    def name(self) -> str:
        return f"latency {self.latency:,} ms, {self.concurrency:,} in flight"

    def lines(self, sender: ScriptSender) -> int:
        """As many lines as fill the time; whole waves of requests if the latency is the limit."""
        waves = 1000 * _SECONDS / self.latency if self.latency else math.inf
        waves = round(max(1, min(waves, _SECONDS * sender.fastest // self.concurrency)))
        return waves * self.concurrency


async def compare(bench: Bench) -> list[Figure]:
    senders, missing = _senders(bench)
    measured: dict[ScriptSetting, list[Series]] = {}
    with tempfile.TemporaryDirectory(prefix="scripts-", dir=bench.scratch) as folder:
        for latency in _LATENCIES[: bench.size(3, quick=1)]:
            with simulator(latency) as upstream:
                for concurrency in _CONCURRENCIES[: bench.size(4, quick=1)]:
                    setting = ScriptSetting(latency, concurrency)
                    measured[setting] = await _at(bench, setting, senders, upstream, Path(folder))
    return _figures(measured, missing)


def _senders(bench: Bench) -> tuple[list[ScriptSender], str]:
    """The senders that can run here, and a note on the others."""

    def batchline(path: Path, upstream: str, concurrency: int) -> float:
        seconds, _ = run_batch(bench.scratch, path, upstream, "--concurrency", str(concurrency))
        return _count(path) / seconds

    def bare(path: Path, upstream: str, concurrency: int) -> float:
        return float(output_of("benchmarks.bare.client", str(path), upstream, str(concurrency)))

    ours = [ScriptSender("Batchline", 12_000, batchline), ScriptSender("bare client", 16_000, bare)]
    try:
        python = python_at("scripts", "the environment of the scripts", make=not bench.quick)
    except Unavailable as error:
        return ours, str(error)
    return [
        *ours,
        ScriptSender("aiohttp script", 3_000, _script(python, "benchmarks.scripts.with_aiohttp")),
        ScriptSender(
            "httpx script", 150, _script(python, "benchmarks.scripts.with_httpx"), max_in_flight=256
        ),
    ], ""


def _script(python: Path, module: str) -> Send:
    def send(path: Path, upstream: str, concurrency: int) -> float:
        with tempfile.NamedTemporaryFile(dir=path.parent) as output:
            return float(run([str(python), "-m", module, str(path), upstream, str(concurrency), output.name]))

    return send


async def _at(
    bench: Bench, setting: ScriptSetting, senders: Sequence[ScriptSender], upstream: str, folder: Path
) -> list[Series]:
    def contestant(sender: ScriptSender) -> Contestant:
        lines = bench.size(setting.lines(sender), quick=100)
        path = _lines_in(folder, lines)

        async def measure() -> float:
            _forget(upstream)
            return sender.send(path, upstream, setting.concurrency)

        return Contestant(f"{sender.name}, {lines:,} requests", "requests/s", measure)

    players = [sender for sender in senders if setting.concurrency <= sender.max_in_flight]
    return await alternate(bench.rounds, *map(contestant, players))


def _lines_in(folder: Path, lines: int) -> Path:
    path = folder / f"{lines}.jsonl"
    return path if path.exists() else write_jsonl(path, lines=lines)


def _count(path: Path) -> int:
    return int(path.stem)


def _forget(upstream: str) -> None:
    """Make the simulator forget its keys, which it would otherwise answer from memory."""
    request = urllib.request.Request(f"{upstream}/reset", method="POST")
    with urllib.request.urlopen(request):
        pass


def _figures(measured: dict[ScriptSetting, list[Series]], missing: str) -> list[Figure]:
    if missing:
        return [
            Figure(setting.name, series[0].median, "requests/s", None, series, missing)
            for setting, series in measured.items()
        ]
    ratios = {setting: series[0].median / series[2].median for setting, series in measured.items()}
    figures = [
        Figure(f"{setting.name}, to the aiohttp script", ratios[setting], "×", None, series)
        for setting, series in measured.items()
    ]
    minimum = min(ratios.values())
    return [
        Figure("the least of all settings, to the aiohttp script", minimum, "×", None, [], table(measured)),
        *figures,
    ]


def table(measured: dict[ScriptSetting, list[Series]]) -> str:
    """Table of all medians."""
    # All take part in the first setting; those that drop out come last.
    names = [series.name.partition(",")[0] for series in next(iter(measured.values()))]
    head = ["latency", "in flight", *(f"{name}, requests/s" for name in names)]
    rows = [
        [
            f"{setting.latency:,} ms",
            f"{setting.concurrency:,}",
            *(number(one.median) for one in series),
            *("–" for _ in names[len(series) :]),
        ]
        for setting, series in measured.items()
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])
