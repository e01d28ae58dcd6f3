"""Lazy request creation: a batch is created in O(1), and rows exist only for what was claimed."""

import signal
import time
from uuid import UUID

import openai

from examples.seeds.site import LIMIT, Simulated, Site, simulated, wait_for, write_lines

CLAIMED = 300
RETRIED = 300


def verify(site: Site) -> None:
    with simulated("--latency", "200") as upstream:
        config = site.folder / "batchline.toml"
        config.write_text("[server]\nmax_lines = 100_000\n")
        options = ("--no-worker", "--config", str(config), "--upstream", upstream.url)
        with site.server(*options) as (url, key):
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
            batch = _creation(site, client)
        _claim(site, batch, upstream)
        _unclaim(site, batch, upstream)
        _cancel(site, batch, upstream)
    _retry(site)
    _orphans(site)


def _creation(site: Site, client: openai.OpenAI) -> str:
    """The same rows and about the same time, whatever the size of the file."""
    added, batches = [], []
    for lines in (10, site.size(100_000, 2_000)):
        path = write_lines(site.folder / f"{lines}.jsonl", lines)
        file = client.files.create(file=path, purpose="batch")
        before, began = site.rows(), time.monotonic()
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        site.say(f"a batch over {lines:,} lines was created in {(time.monotonic() - began) * 1000:.0f} ms")
        after = site.rows()
        added.append(
            {table: after[table] - before[table] for table in after if after[table] != before[table]}
        )
        batches.append(batch.id)
    site.check("both batches are as many rows", added[0] == added[1], added[1])
    client.batches.cancel(batches[0])
    counts = site.counts(batches[1])
    site.check(
        "every line is pending, without a row", counts["pending"] == counts["total"] == lines, f"{lines:,}"
    )
    return batches[1]


def _claim(site: Site, batch: str, upstream: Simulated) -> None:
    """Rows come with claims and stay with outcomes."""
    site.run("worker", "--max-items", str(CLAIMED), "--upstream", upstream.url)
    counts = site.counts(batch)
    site.check(f"a worker claimed and completed {CLAIMED} of them", counts["completed"] == CLAIMED)
    site.check("the others are pending", counts["pending"] == counts["total"] - CLAIMED, counts["pending"])
    kept = (site.rows()["results"], site.rows()["spans"])
    site.check("there is a row for each outcome and none for anything else", kept == (CLAIMED, 0), kept)


def _unclaim(site: Site, batch: str, upstream: Simulated) -> None:
    """A worker that stops gives back what it has claimed, without an attempt."""
    with site.worker("--concurrency", "4", "--upstream", upstream.url) as worker:
        counts = wait_for("claims", lambda: _claimed(site, batch))
        site.check(
            "claimed requests are in progress, and all states add up", _adds_up(counts), _displayed(counts)
        )
        # The second signal does not wait for what is in flight.
        worker.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        worker.wait(LIMIT)
    counts = site.counts(batch)
    site.check(
        "a stopped worker holds nothing", counts["in_progress"] == 0 and _adds_up(counts), _displayed(counts)
    )
    site.check("and that was no attempt", site.rows()["retry_attempts"] == 0)


def _claimed(site: Site, batch: str) -> dict[str, int] | None:
    counts = site.counts(batch)
    return counts if counts["in_progress"] else None


def _adds_up(counts: dict[str, int]) -> bool:
    return sum(counts.values()) == 2 * counts["total"]


def _displayed(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in counts.items() if number and state != "total")


def _cancel(site: Site, batch: str, upstream: Simulated) -> None:
    """A cancel updates no request. What is in flight finishes, and the rest is derived."""
    with site.worker("--concurrency", "4", "--upstream", upstream.url):
        wait_for("claims", lambda: _claimed(site, batch))
        site.run("cancel", batch)
        counts = site.counts(batch)
        site.check(
            "after a cancel nothing is pending",
            counts["pending"] == 0 and _adds_up(counts),
            _displayed(counts),
        )
        wait_for("the end of the batch", lambda: site.read("status", batch)["status"] == "cancelled")
    counts = site.counts(batch)
    derived = counts["total"] - counts["completed"] - counts["failed"]
    site.check("cancelled = total - completed - failed", counts["cancelled"] == derived, f"{derived:,}")
    rows = site.rows()["results"]
    site.check("cancelled requests have no rows", rows == counts["completed"], f"{rows} results")


def _retry(site: Site) -> None:
    """Failed attempts are kept. What a killed worker held is run by the next one, once."""
    inputs = write_lines(site.folder / "retries.jsonl", RETRIED)
    with simulated("--latency", "20", "--error-rate", "0.2") as upstream:
        batch = site.read("submit", str(inputs), "--upstream", upstream.url, "--max-attempts", "20")["id"]
        with site.worker("--concurrency", "8", "--lease", "2") as worker:
            wait_for("executions", lambda: upstream.stats()["executed"] > RETRIED / 3)
            worker.kill()
            worker.wait()
        site.run("worker", "--drain", "--lease", "2")
        executed = upstream.stats()["executed"]
    counts = site.counts(batch)
    site.check("after a killed worker, the next one completes the batch", counts["completed"] == RETRIED)
    site.check("every line was executed exactly once", executed == RETRIED, executed)
    ((custom_id,),) = site.sql(
        """
        SELECT r.custom_id FROM batchline.requests AS r WHERE r.batch_id = %s AND r.attempt > 1
        ORDER BY r.attempt DESC LIMIT 1
        """,
        UUID(batch.removeprefix("batch_")),
    )
    attempts = site.read("attempts", batch, custom_id)["attempts"]
    complete = all(one["error_code"] and one["not_before"] for one in attempts)
    said = ", ".join(f"{one['attempt']} {one['error_code']}" for one in attempts)
    site.check(
        f"failed attempts of {custom_id} are kept, each with its not_before",
        bool(attempts) and complete,
        said,
    )


def _orphans(site: Site) -> None:
    """What is left of a batch that was deleted by hand is deleted by maintenance."""
    site.sql("DELETE FROM batchline.batches")
    left = site.rows()
    site.check(
        "a deletion by hand cascades to no results", left["results"] > RETRIED, f"{left['results']} are left"
    )
    site.sql("UPDATE batchline.maintenance_tasks SET due_at = now()")
    site.run("worker", "--drain")
    left = {
        name: site.rows()[name] for name in ("lanes", "spans", "results", "retry_attempts", "deleted_lanes")
    }
    site.check("maintenance deletes what is left", not any(left.values()), left)
    site.run("doctor")
    site.check("the doctor finds nothing", True)
