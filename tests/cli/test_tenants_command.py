"""`batchline tenants`: list, quota, usage, erase; and the quota of commands."""

import json
from pathlib import Path

from batchline.governance import keys
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, finalize, on, run_to_the_end, take
from tests.support.processes import batchline, write_requests


async def an_ended_batch(db: Session) -> None:
    worker = a_worker()
    batch = await a_batch(db, 3, tenant="acme")
    await run_to_the_end(db, worker)
    await finalize(db, worker, batch)


def test_usage_is_a_table_or_json(database_url: str) -> None:
    on(database_url, an_ended_batch)
    location = ("--database", database_url)
    table = batchline("tenants", "usage", *location)
    assert table.returncode == 0, table.stderr
    head, row = (line.split() for line in table.stdout.splitlines())
    assert head[:5] == ["period", "tenant", "batches", "lines", "failed"]
    assert row[2:6] == ["acme", "1", "3", "0"]
    report = json.loads(batchline("tenants", "usage", "--by", "day", "--json", *location).stdout)
    (day,) = report["data"]
    assert (day["tenant"], day["lines"], day["tokens"]["input"], day["failed"]) == ("acme", 3, 9, 0)
    other = json.loads(batchline("tenants", "usage", "--tenant", "other", "--json", *location).stdout)
    assert other["data"] == []
    wrong = batchline("tenants", "usage", "--since", "2026-02-01", "--until", "2026-01-01", *location)
    assert (wrong.returncode, "--since 2026-02-01 is not before --until 2026-01-01" in wrong.stderr) == (
        2,
        True,
    )


def test_a_quota_is_set_shown_and_holds_for_commands(database_url: str, tmp_path: Path) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    done = batchline("tenants", "quota", "default", "1kB", "--reason", "trial", *location)
    assert (done.returncode, done.stdout) == (0, "default may store 1.0 kB, and stores 0 B\n"), done.stderr
    listed = json.loads(batchline("tenants", "list", "--json", *location).stdout)["data"]
    assert [(each["name"], each["max_bytes"], each["status"]) for each in listed] == [
        ("default", 1000, "active")
    ]
    inputs = write_requests(tmp_path / "in.jsonl", 100)
    refused = batchline("submit", str(inputs), "--upstream", "http://127.0.0.1:9/v1", *location)
    assert refused.returncode == 2
    assert 'tenant "default" stores 0 bytes of its quota of 1000, so ' in refused.stderr
    assert "batchline tenants quota" in refused.stderr
    assert batchline("tenants", "quota", "default", "none", *location).returncode == 0
    again = batchline("submit", str(inputs), "--upstream", "http://127.0.0.1:9/v1", *location)
    assert again.returncode == 0, again.stderr


def test_wrong_sizes_and_unknown_tenants_are_refused(database_url: str) -> None:
    location = ("--database", database_url)
    wrong = batchline("tenants", "quota", "default", "many", *location)
    assert wrong.returncode == 2
    assert 'SIZE must be a size such as "200MB"' in wrong.stderr
    unknown = batchline("tenants", "quota", "nobody", "1GB", *location)
    assert (unknown.returncode, "No such tenant: nobody" in unknown.stderr) == (1, True)


def test_erase_asks_erases_and_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))

    async def scene(db: Session) -> None:
        await keys.create(db, "anna", "acme")
        await an_ended_batch(db)

    on(database_url, scene)
    unasked = batchline("tenants", "erase", "acme", *location)
    assert unasked.returncode == 2
    assert "repeat the command with --yes" in unasked.stderr
    done = batchline("tenants", "erase", "acme", "--yes", "--reason", "left", *location)
    assert (done.returncode, done.stdout) == (0, "erased acme\n"), done.stderr
    listed = json.loads(batchline("tenants", "list", "--json", *location).stdout)["data"]
    assert [(each["name"], each["status"]) for each in listed] == [("acme", "erased"), ("default", "active")]
    checked = batchline("doctor", *location)
    assert (checked.returncode, checked.stdout.split(":")[0]) == (0, "clean"), checked.stdout + checked.stderr
    refused = batchline("tenants", "erase", "acme", "--yes", *location)
    assert refused.returncode == 1


def test_an_erasure_can_be_left_to_workers(database_url: str, tmp_path: Path) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))

    async def busy(db: Session) -> None:
        await a_batch(db, 3, tenant="acme")
        await take(db, a_worker(), 1)

    on(database_url, busy)
    begun = batchline("tenants", "erase", "acme", "--yes", "--no-wait", "--json", *location)
    assert json.loads(begun.stdout)["status"] == "erasing"
