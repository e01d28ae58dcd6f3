"""Import pages of a local site in three stages, kill workers meanwhile, and count.

    python -m examples.bulk_import [--pages 20000] [--kill 2] [--output FOLDER]

Exit code 1: something was lost or doubled.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from batchline.embedded import EmbeddedPostgres
from examples.bulk_import import processes, statements
from examples.bulk_import.site import PART
from examples.bulk_import.tasks import app, read_manifest, resolve, scrape

HOSTS, WORKERS = 8, 2
# Seconds after which an idle worker polls as seldom as it ever does.
_SLOWED_DOWN = 35


def main() -> int:
    options = _options()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bulk-import-") as folder:
        data = Path(folder, "data")
        with EmbeddedPostgres.start(data, settings=statements.SETTINGS) as server:
            os.environ.update(BATCHLINE_DATABASE_URL=server.url, BATCHLINE_DATA_DIR=str(data))
            processes.migrate()
            return run(options, statements.StatementLog(data / "postgres.log"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.bulk_import", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--kill", type=int, default=2, help="how many workers die of SIGKILL")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds that the site takes to answer")
    parser.add_argument("--idle", type=int, default=0, help="seconds to count what idle workers ask")
    parser.add_argument("--output", type=Path, default=Path("imported"), help="folder for results and counts")
    return parser.parse_args()


def run(options: argparse.Namespace, log: statements.StatementLog) -> int:
    parts = range((options.pages + PART - 1) // PART)
    with app, processes.running_site(options.pages, HOSTS, options.latency) as site:
        batch = app.sync.submit(read_manifest, [f"{site.hosts[0]}/manifest/{part}" for part in parts])
        log.since_last_time()
        with processes.running_workers(WORKERS) as workers:
            follow(batch, workers, options)
            report_statements(log.since_last_time(), options.pages)
            if options.idle:
                report_idle(log, options.idle)
        outcomes = {
            stage.name: list(batch.results(stage=stage)) for stage in (read_manifest, scrape, resolve)
        }
        stats = site.stats()
    write(options.output, outcomes[resolve.name], stats)
    return report_counts(outcomes, stats, options.pages)


def follow(batch: Any, workers: processes.Workers, options: argparse.Namespace) -> None:
    """Print the progress until the batch has ended. Kill workers on the way, at equal distances."""
    killed, began, printed = 0, time.monotonic(), 0.0
    while not (progress := batch.status()).ended:
        scraped = progress.stages[scrape.name].completed
        if killed < options.kill and scraped >= options.pages * (killed + 1) / (options.kill + 1):
            workers.kill_one()
            killed += 1
            print(f"killed worker {killed} after {scraped:,} pages", flush=True)
        if time.monotonic() - printed >= 2:
            printed = time.monotonic()
            counts = [
                f"{name} {stage.completed:,} of {stage.total:,}" for name, stage in progress.stages.items()
            ]
            print("  ".join(counts), flush=True)
        time.sleep(0.05)
    print(f"{options.pages:,} pages in {time.monotonic() - began:.0f} s", flush=True)


def report_statements(found: "Counter[str]", pages: int) -> None:
    claims = statements.claims(found)
    print(f"{claims:,} claims for {2 * pages:,} items: {2 * pages / max(claims, 1):.0f} items per claim")


def report_idle(log: statements.StatementLog, seconds: int) -> None:
    print(f"waiting {_SLOWED_DOWN} s, until idle workers poll seldom", flush=True)
    time.sleep(_SLOWED_DOWN)
    log.since_last_time()
    time.sleep(seconds)
    found = log.since_last_time()
    print(f"{WORKERS} idle workers sent {found.total()} statements in {seconds} s: {dict(found)}")


def write(folder: Path, resolved: list[Any], stats: dict[str, Any]) -> None:
    with (folder / "compositions.jsonl").open("w") as stream:
        for result in resolved:
            value = (
                None
                if result.value is None
                else {"title": result.value.title, "composer": result.value.composer}
            )
            stream.write(json.dumps({"page": result.key, "ok": result.ok, "value": value}) + "\n")
    (folder / "site.json").write_text(json.dumps(stats))


def report_counts(outcomes: dict[str, list[Any]], stats: dict[str, Any], pages: int) -> int:
    """Every page has one result in each stage, and was requested at least once. Returns the exit code."""
    wrong = 0
    for stage in (scrape, resolve):
        keys = Counter(result.key for result in outcomes[stage.name])
        failed = sum(not result.ok for result in outcomes[stage.name])
        doubled = sum(count - 1 for count in keys.values())
        print(f"{stage.name}: {len(keys):,} of {pages:,} pages, {doubled} doubled, {failed} failed")
        wrong += abs(pages - len(keys)) + doubled + failed
    answered = stats["answered"].values()
    again = sum(answered) - len(answered)
    print(
        f"the site answered {sum(answered):,} requests for {len(answered):,} pages: {again} were sent again"
    )
    print(f"it refused {stats['overloaded']:,}, and had at most {max(stats['peak'])} in flight per host")
    return 1 if wrong or len(answered) != pages else 0


if __name__ == "__main__":
    sys.exit(main())
