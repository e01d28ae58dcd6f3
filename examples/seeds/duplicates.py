"""Duplicate submissions: three workers at once submit each item to an asynchronous provider exactly once."""

import json
import re
import subprocess

from examples.seeds.site import ROOT, Site, StepFailed, environment, simulated, write_lines

WORKERS = 3
WORKER = ("worker", "--drain", "--max-items", "1000", "--concurrency", "25")
# The query of the document, on the view.
TWICE = """
    SELECT provider_task_id, count(*) FROM batchline.provider_items
    WHERE provider_task_id IS NOT NULL
    GROUP BY provider_task_id
    HAVING count(*) > 1
"""


def verify(site: Site) -> None:
    items = site.size(2_000, 200)
    inputs = write_lines(site.folder / "items.jsonl", items, "/v1/responses")
    provider = ("--provider", "openai-background", "--provider-recovery", "key")
    with simulated("--task", "1000") as upstream:
        batch = site.read("submit", str(inputs), "--upstream", upstream.url, *provider)["id"]
        log = ""
        # A worker may leave while another one holds the rest.
        while site.read("status", batch)["status"] != "completed":
            log += _at_once(site)
        ledger = [json.loads(line) for line in upstream.read("/tasks").splitlines()]
    claims = re.findall(r"claimed \d+ of \d+ wanted", log)
    site.check(
        f"{WORKERS} workers at once log what they claim", len(claims) >= WORKERS, "; ".join(claims[:3])
    )
    site.check(f"all {items:,} items completed", site.counts(batch)["completed"] == items)
    site.check("the query of the document returns nothing", site.sql(TWICE) == [])
    found = site.sql("SELECT provider_task_id FROM batchline.provider_items")
    tasks = {task_id for (task_id,) in found}
    site.check(
        "every item has its own task id", len(tasks - {None}) == len(found) == items, f"{len(tasks):,}"
    )
    site.check(
        "the provider accepted exactly these tasks",
        len(ledger) == items and {task["id"] for task in ledger} == tasks,
        f"{len(ledger):,}",
    )
    states = dict(site.sql("SELECT state, count(*) FROM batchline.provider_items GROUP BY state"))
    site.check("no item is stuck in submitting", states == {"succeeded": items}, states)


def _at_once(site: Site) -> str:
    """Three workers at once; what they log."""
    command = site.command(*WORKER)
    command.insert(3, "-v")
    processes = [
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(), cwd=ROOT
        )
        for _ in range(WORKERS)
    ]
    logs = [process.communicate(timeout=300)[1] for process in processes]
    if any(process.returncode for process in processes):
        raise StepFailed("a worker failed: " + "".join(logs)[-2000:])
    return "".join(logs)
