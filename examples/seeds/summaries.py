"""Summarization under concurrency: workers finish many small batches at once, and each is summarized once."""

import json
import shlex
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import openai

from examples.seeds.site import Site, simulated, wait_for, write_lines

WORKERS = 4
LINES = 8
ENDED = "SELECT count(*) FROM batchline.batches WHERE completed_at IS NOT NULL"
ONCE = """
    SELECT count(*) FROM batchline.batches
    WHERE (summary ->> 'completed')::integer = %s AND (summary ->> 'total')::integer = %s
"""
# As if the last worker had not seen that it was the last one.
STUCK = """
    UPDATE batchline.batches
    SET finalizing_at = NULL, finalizer = NULL, completed_at = NULL, output_file_id = NULL, summary = NULL
    WHERE id = %s
"""
OUTPUTS = "SELECT count(*) FROM batchline.files WHERE purpose = 'batch_output'"


def verify(site: Site) -> None:
    number = site.size(200, 20)
    calls = site.folder / "calls"
    calls.mkdir()
    record = shlex.join(["sh", "-c", 'cat > "$(mktemp "$0/XXXXXXXX")"', str(calls)])
    with simulated() as upstream, ExitStack() as workers:
        with site.server("--no-worker", "--upstream", upstream.url) as (url, key):
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
            file = client.files.create(file=write_lines(site.folder / "lines.jsonl", LINES), purpose="batch")
            for _ in range(WORKERS):
                # Few lines at a time, so that the last lines of a batch are in different workers.
                options = ("--upstream", upstream.url, "--concurrency", "2", "--on-end-command", record)
                workers.enter_context(site.worker(*options))
            for _ in range(number):
                client.batches.create(
                    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                )
        wait_for("the end of all batches", lambda: site.number(ENDED) == number)
        site.check(f"{WORKERS} workers at once ended all batches", True, number)
        once = site.number(ONCE, LINES, LINES)
        site.check(f"every batch has a summary of its {LINES} lines", once == number, once)
        outputs = site.number(OUTPUTS)
        site.check("and one output file", outputs == number, outputs)
        wait_for("the hooks", lambda: len(_events(calls)) >= number)
        times = Counter(_events(calls).values())
        site.check(
            "the hook ran once for each, after its end",
            times == {1: number},
            f"{sum(times.values())} batches",
        )
        _sweep(site)
    site.run("doctor")
    site.check("the doctor finds nothing", True)


def _events(calls: Path) -> "Counter[str]":
    """How often the hook was called for each batch. An event that is being written does not count."""
    texts = [path.read_text() for path in calls.iterdir()]
    return Counter(json.loads(text)["data"]["id"] for text in texts if text.endswith("}"))


def _sweep(site: Site) -> None:
    """A batch of which all lines have ended, but that nobody summarized, is found by the sweep."""
    before = site.number(ENDED)
    ((batch, output),) = site.sql("SELECT id, output_file_id FROM batchline.batches ORDER BY id LIMIT 1")
    site.sql(STUCK, batch)
    site.sql("DELETE FROM batchline.files WHERE id = %s", output)
    site.check("one batch is stuck, made by hand", site.number(ENDED) == before - 1)
    site.make_due("unfrozen")
    wait_for("the repair", lambda: site.number(ENDED) == before)
    site.check("the sweep, which runs every 5 to 10 minutes, has it summarized", True)
