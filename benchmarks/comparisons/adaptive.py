"""`batchline run` with its defaults against a sweep of fixed concurrencies, at upstreams that say nothing.

The simulated upstream takes 250 ms for a request and runs 32 at once. It queues the others without bound,
queues 16 and refuses more with 503, refuses more only after 250 ms of work in a slot, or changes its
capacity: doubled after 45 s, a quarter of that after 90 s. Goodput is what it answers per second, once the
limit had 30 s to settle, or 15 s after a step. The best fixed concurrency is the lowest with at least 99 %
of the highest goodput. All over real HTTP, one run each: the model of the unit tests has more capacities.

Charts show what is at the upstream, waiting there or running, and the time that requests took (Little's law:
what is there, divided by answers per second), over the seconds of the run.
"""

import json
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, NamedTuple

import msgspec

from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, Trace, at_least, at_most, ratio
from benchmarks.inputs import write_jsonl
from benchmarks.processes import batchline, running, simulator

_LATENCY, _CAPACITY = 250, 32
_EVERY = 0.25
_FIXED = (16, 32, 64, 8, 128)
# Samples that one point of a chart covers.
_SMOOTH = 8


class UpstreamSample(NamedTuple):
    """What the upstream counts at one moment, in seconds since its first request."""

    at: float
    present: int
    answered: int
    refused: int


@dataclass(frozen=True, slots=True)
class OverloadMode:
    """An upstream, and in which seconds to measure."""

    name: str
    options: tuple[str, ...]
    windows: tuple[tuple[float, float], ...] = ((30.0, 50.0),)

    def described(self, window: tuple[float, float]) -> str:
        return self.name if len(self.windows) == 1 else f"{self.name}, from {window[0]:.0f} s on"


_LIMITED = ("--concurrency", str(_CAPACITY))
_MODES = (
    OverloadMode("queues", _LIMITED),
    OverloadMode("queues 16, then 503", (*_LIMITED, "--max-queue", "16")),
    OverloadMode("503 after work", (*_LIMITED, "--max-queue", "0", "--late-refusal", str(_LATENCY))),
    OverloadMode(
        "capacity steps",
        (*_LIMITED, "--capacity-steps", f"45s:{2 * _CAPACITY},90s:{_CAPACITY // 2}"),
        windows=((60.0, 88.0), (105.0, 125.0)),
    ),
)


async def compare(bench: Bench) -> list[Figure]:
    return [figure for mode in _MODES for figure in _figures(bench, mode)]


def _figures(bench: Bench, mode: OverloadMode) -> list[Figure]:
    windows = ((1.0, 3.0),) if bench.quick else mode.windows
    until = windows[-1][1]
    ours = _samples(bench, mode, until)
    sweep = {
        number: _samples(bench, mode, until, "--concurrency", str(number))
        for number in _FIXED[: bench.size(len(_FIXED), quick=1)]
    }
    figures = []
    for window in windows:
        found = _goodput("Batchline, defaults", ours, window)
        fixed = [_goodput(f"{number} in flight", each, window) for number, each in sorted(sweep.items())]
        best = next(each for each in fixed if each.median >= 0.99 * max(other.median for other in fixed))
        name = f"goodput, {mode.described(window)}, to the best fixed concurrency ({best.name})"
        figure = ratio(name, found, best, at_least(0.9))
        figures.append(msgspec.structs.replace(figure, series=[found, *fixed]))
    figures[-1] = msgspec.structs.replace(figures[-1], traces=_traces(ours))
    return [*figures, _refused(mode, ours, windows[-1])]


def _samples(bench: Bench, mode: OverloadMode, until: float, *options: str) -> list[UpstreamSample]:
    """Run until so many seconds after the first request."""
    lines = int(until * 2 * _CAPACITY * 1000 / _LATENCY) + 1000
    with (
        tempfile.TemporaryDirectory(prefix="adaptive-", dir=bench.scratch) as folder,
        simulator(_LATENCY, options=mode.options) as url,
    ):
        path = write_jsonl(Path(folder, "in.jsonl"), lines=lines)
        where = ("--data-dir", str(Path(folder, "data")), "--output", str(Path(folder, "out.jsonl")))
        command = batchline("run", str(path), "--upstream", url, "--json", "--max-failed", "none", *where)
        with running([*command, *options]):
            return _watched(url, until)


def _watched(url: str, until: float) -> list[UpstreamSample]:
    begun, found = 0.0, list[UpstreamSample]()
    while not found or found[-1].at < until:
        stats = _stats(url)
        if begun or stats["requests"]:
            begun = begun or perf_counter()
            refused = stats["by_status"].get("503", 0)
            present = stats["in_flight"] + stats["waiting"]
            found.append(
                UpstreamSample(perf_counter() - begun, present, stats["by_status"].get("200", 0), refused)
            )
        sleep(_EVERY)
    return found


def _stats(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/stats", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _within(samples: list[UpstreamSample], window: tuple[float, float]) -> list[UpstreamSample]:
    return [each for each in samples if window[0] <= each.at <= window[1]]


def _goodput(name: str, samples: list[UpstreamSample], window: tuple[float, float]) -> Series:
    first, *_, last = _within(samples, window)
    return Series(name, "requests/s", [(last.answered - first.answered) / (last.at - first.at)])


def _refused(mode: OverloadMode, samples: list[UpstreamSample], window: tuple[float, float]) -> Figure:
    first, *_, last = _within(samples, window)
    refused, answered = last.refused - first.refused, last.answered - first.answered
    share = 100 * refused / max(1, refused + answered)
    return Figure(f"refused, {mode.described(window)}", share, "%", at_most(2.0), [])


def _traces(samples: list[UpstreamSample]) -> list[Trace]:
    """What was at the upstream, and how long requests took."""
    pairs = [(before, after) for before, after in zip(samples, samples[_SMOOTH:], strict=False)]
    present = [
        sum(each.present for each in samples[nth : nth + _SMOOTH]) / _SMOOTH for nth in range(len(pairs))
    ]
    rates = [(after.answered - before.answered) / (after.at - before.at) for before, after in pairs]
    times = [round(after.at, 2) for _, after in pairs]
    seconds = [number / rate if rate else 0.0 for number, rate in zip(present, rates, strict=True)]
    return [
        Trace("at the upstream", "requests", times, [round(each, 1) for each in present]),
        Trace("latency", "s", times, [round(each, 3) for each in seconds]),
    ]
