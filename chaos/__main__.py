"""python -m chaos [--minutes M] [--seed S] [--workers N] [--round R] [--only FAULT] [--schedule] …"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import SystemRandom
from time import monotonic
from uuid import UUID

from batchline.cli.logs import set_up_logging
from benchmarks import machine
from chaos import report
from chaos.round import RoundOutcome, play
from chaos.schedule import Fault, schedule
from chaos.world import World


def main() -> None:
    options = _options()
    if options.schedule:
        print(schedule(options.seed, options.round or 1, options.workers, options.only))
        return
    set_up_logging()
    folder = Path(tempfile.mkdtemp(prefix="batchline-chaos-"))
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    about = machine.describe(folder)
    print(f"seed {options.seed}, {options.workers} workers, logs in {folder}", flush=True)
    try:
        outcomes = asyncio.run(_run(folder, options))
    except asyncio.CancelledError:
        sys.exit(f"seed {options.seed}: ended by a signal; logs are in {folder}")
    results = report.sum_up(
        outcomes,
        date=date,
        command=" ".join(["python -m chaos", *sys.argv[1:]]),
        seed=options.seed,
        workers=options.workers,
        minutes=options.minutes,
        machine=about,
        versions=machine.versions(),
    )
    if options.report is not None:
        report.save(results, options.report)
    print(report.summary(results))
    if not results.clean:
        for outcome in outcomes:
            if outcome.findings:
                again = f"--seed {options.seed} --workers {options.workers} --round {outcome.schedule.round}"
                only = "".join(f" --only {_name(fault)}" for fault in options.only)
                again += f" --postgres {options.postgres}" if options.postgres else ""
                print(f"again: python -m chaos {again}{only}")
        sys.exit(f"seed {options.seed}: {len(results.findings)} findings; logs are in {folder}")
    shutil.rmtree(folder)


async def _run(folder: Path, options: argparse.Namespace) -> list[RoundOutcome]:
    until = monotonic() + options.minutes * 60
    # If a signal ends the run, it still stops the processes that it started.
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    outcomes: list[RoundOutcome] = []
    known: set[UUID] = set()
    world = await World.begin(folder, options.seed, options.workers, options.postgres)
    try:
        for number in _rounds(options):
            plan = schedule(options.seed, number, options.workers, options.only)
            print(plan, flush=True)
            outcomes.append(await play(world, plan, known))
            print(report.reported(outcomes[-1]), flush=True)
            if monotonic() >= until or outcomes[-1].findings:
                break
    finally:
        await world.end()
    return outcomes


def _rounds(options: argparse.Namespace) -> Iterator[int]:
    return iter((options.round,)) if options.round else count(1)


def _fault(name: str) -> Fault:
    try:
        return Fault[name.upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(map(_name, Fault))
        raise argparse.ArgumentTypeError(f"unknown fault {name}; choose from {known}") from None


def _name(fault: Fault) -> str:
    return fault.name.lower().replace("_", "-")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos")
    parser.add_argument("--minutes", type=float, default=2.0, help="start rounds for this long; at least one")
    parser.add_argument("--seed", type=int, default=None, help="determines the schedule; random by default")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--round", type=int, default=None, help="run only this round of the seed")
    parser.add_argument(
        "--only",
        type=_fault,
        action="append",
        default=[],
        metavar="FAULT",
        help="only this fault, by its name in chaos/schedule.py: kill-worker, read-only, …; may be repeated",
    )
    parser.add_argument("--schedule", action="store_true", help="only print the schedule of a round")
    parser.add_argument(
        "--postgres", type=Path, metavar="BIN", help="folder of an installed PostgreSQL's programs to use"
    )
    parser.add_argument("--report", type=Path, metavar="FILE.md", help="write the page and its data")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = SystemRandom().randrange(10**6)
    return options


if __name__ == "__main__":
    main()
