"""Run benchmarks: `batchline-bench [NAME…] [--quick] [--report FILE.md]` or `python -m benchmarks`.

A report replaces the results of the named comparisons and keeps the others.
"""

import argparse
import asyncio
import inspect
import signal
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import msgspec

from benchmarks import machine, report
from benchmarks.bench import Bench
from benchmarks.comparisons import COMPARISONS
from benchmarks.report import Compared, Run
from benchmarks.server import a_server
from benchmarks.sleepers import SLEEPERS, side_by_side


def main() -> None:
    options = _options()
    if options.quick:
        print("quick run: the sizes are too small for meaningful figures", flush=True)
    # On SIGTERM, still stop the servers and remove the folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        tempfile.TemporaryDirectory(prefix="batchline-bench-") as folder,
        a_server(Path(folder, "server")) as server,
    ):
        bench = Bench(server, Path(folder), options.quick)
        run = Run(
            date=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            command=" ".join(["batchline-bench", *sys.argv[1:]]),
            quick=options.quick,
            machine=machine.describe(bench.scratch),
            versions=machine.versions(),
            settings=server.settings(),
        )
        begun = perf_counter()
        for compared in _compared(options.names or list(COMPARISONS), bench, run):
            print(report.reported(compared), flush=True)
            # Save after each, so that an aborted run keeps its finished comparisons.
            if options.report is not None:
                so_far = msgspec.structs.replace(run, seconds=perf_counter() - begun)
                known = report.load(options.report)
                report.save(report.renewed(known, so_far, [compared], list(COMPARISONS)), options.report)


def _compared(names: list[str], bench: Bench, run: Run) -> Iterator[Compared]:
    """Run the comparisons. Those that mostly wait come last, side by side if there are several."""
    asleep = [name for name in names if name in SLEEPERS]
    if len(asleep) < 2:
        asleep = []
    for name in names:
        if name not in asleep:
            yield _compare(name, bench, run)
    yield from side_by_side(asleep, run, bench.scratch)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="batchline-bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMPARISONS))
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that everything runs")
    parser.add_argument(
        "--report", type=Path, metavar="FILE.md", help="write the page, its data and its charts"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(COMPARISONS):
        parser.error(f"unknown comparison {', '.join(sorted(unknown))}; choose from {', '.join(COMPARISONS)}")
    return options


def _compare(name: str, bench: Bench, run: Run) -> Compared:
    comparison = COMPARISONS[name]
    begun = perf_counter()
    figures = asyncio.run(comparison.compare(bench))
    return Compared(name, inspect.getdoc(comparison) or "", perf_counter() - begun, run.date, figures)


if __name__ == "__main__":
    main()
