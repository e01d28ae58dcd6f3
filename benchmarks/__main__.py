"""python -m benchmarks [NAME…] [--quick] [--report docs/benchmarks.md]"""

import argparse
import asyncio
import inspect
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from benchmarks import machine, report
from benchmarks.bench import Bench
from benchmarks.comparisons import COMPARISONS
from benchmarks.report import Compared, Results
from benchmarks.server import a_server


def main() -> None:
    options = _options()
    # Ended from outside, it still stops its servers and removes its folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = options.names or list(COMPARISONS)
    begun = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="batchline-bench-") as folder:
        scratch = Path(folder)
        surroundings = machine.describe(scratch)
        with a_server(scratch / "server") as server:
            settings = server.settings()
            compared = [_compare(name, Bench(server, scratch, options.quick)) for name in names]
    if options.report is not None:
        results = Results(
            date=f"{begun:%Y-%m-%d %H:%M} UTC",
            command=" ".join(["python -m benchmarks", *sys.argv[1:]]),
            quick=options.quick,
            machine=surroundings,
            versions=machine.versions(),
            settings=settings,
            comparisons=compared,
        )
        report.save(results, options.report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMPARISONS))
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that everything runs")
    parser.add_argument(
        "--report", type=Path, metavar="FILE.md", help="write the page, its data and its charts"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(COMPARISONS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(COMPARISONS)}")
    return options


def _compare(name: str, bench: Bench) -> Compared:
    comparison = COMPARISONS[name]
    begun = perf_counter()
    figures = asyncio.run(comparison.compare(bench))
    compared = Compared(name, inspect.getdoc(comparison) or "", perf_counter() - begun, figures)
    print(report.told(compared), flush=True)
    return compared


if __name__ == "__main__":
    main()
