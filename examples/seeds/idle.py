"""Idle load: an idle worker sends hardly any queries, and is fast when work comes."""

import re
import time
from collections import Counter
from pathlib import Path

from examples.seeds.site import Site, simulated, wait_for, write_lines

# A statement that the worker sent to this part's database, and the name in its first comment.
STATEMENT = re.compile(
    r"^<batchline [^>]*idle> LOG: +(?:statement|execute [^:]*): (?:/\* (\w+) \*/)?", re.MULTILINE
)
# After this time the interval between two polls is the longest.
SLOWED_DOWN = 35


def verify(site: Site) -> None:
    log = site.folder.parent / "server" / "postgres.log"
    lines = site.size(20_000, 1_000)
    inputs = write_lines(site.folder / "burst.jsonl", lines)
    with simulated() as upstream, site.worker("--concurrency", "64"):
        began = log.stat().st_size
        wait_for("the first poll", lambda: "poll" in _statements(log, began))
        time.sleep(site.size(SLOWED_DOWN, 3))
        seconds = site.size(60, 5)
        # The document goes from 480 per minute to 24. In the short form the worker is still slowing down.
        maximum = site.size(4, 5)
        # On a slow machine, what a worker does at its start may reach into the first time or two.
        for _ in range(3):
            start = log.stat().st_size
            time.sleep(seconds)
            idle = _statements(log, start)
            if idle.total() <= maximum:
                break
        site.check(
            f"an idle worker sent at most {maximum} queries in {seconds} s",
            idle.total() <= maximum,
            dict(idle),
        )
        start = log.stat().st_size
        batch = site.read("submit", str(inputs), "--upstream", upstream.url)["id"]
        submitted = time.monotonic()
        wait_for("the end of the batch", lambda: site.read("status", batch)["status"] == "completed")
        took = time.monotonic() - submitted
        busy = _statements(log, start)
        executed = upstream.stats()["executed"]
    site.check(
        f"a burst of {lines:,} lines was executed, each once",
        executed == lines,
        f"{lines / took:,.0f} per second",
    )
    claims = sum(number for name, number in busy.items() if name.startswith("claim"))
    site.check(
        "a claim takes many lines", 0 < claims <= lines / 5, f"{lines / max(claims, 1):,.0f} lines per claim"
    )


def _statements(log: Path, start: int) -> "Counter[str]":
    """The worker's statements since this position of the server's log, by name."""
    with log.open("rb") as stream:
        stream.seek(start)
        return Counter(name or "other" for name in STATEMENT.findall(stream.read().decode(errors="replace")))
