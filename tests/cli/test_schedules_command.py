"""`batchline schedules`: what a worker has registered and run, for people and programs."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batchline import Batchline
from tests.support.processes import batchline
from tests.support.waiting import wait_for


def _app(database_url: str, folder: Path) -> Batchline:
    app = Batchline(database_url, data_dir=folder / "data")

    @app.operation
    async def report(day: int) -> int:
        return day

    @app.schedule("* * * * * *", report, timezone="Europe/Berlin")
    async def often(at: datetime) -> list[int]:
        return [at.second]

    @app.schedule("0 0 1 1 *", report)
    async def yearly(at: datetime) -> list[int]:
        return [at.year]

    @app.schedule("* * * * * *", report)
    async def broken(at: datetime) -> list[int]:
        raise ValueError("no rows for [today]")

    return app


async def test_schedules_are_listed_with_their_times_batches_and_errors(
    database_url: str, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))

    def listed() -> dict[str, Any]:
        done = batchline("schedules", "--json", *location)
        assert done.returncode == 0, done.stderr
        return {each["name"]: each for each in json.loads(done.stdout)["data"]}

    async with _app(database_url, tmp_path) as app, app.worker():
        await _until_listed(listed)
    found = listed()
    often, yearly, broken = found["often"], found["yearly"], found["broken"]
    assert (often["expression"], often["timezone"]) == ("* * * * * *", "Europe/Berlin")
    assert often["operation"] == "report"
    assert often["last_batch_id"].startswith("batch_")
    assert (yearly["state"], yearly["last_at"], yearly["operation"]) == ("waiting", None, None)
    assert datetime.fromtimestamp(yearly["next_at"], UTC).strftime("%m-%d %H:%M") == "01-01 00:00"
    assert broken["state"] == "retrying"
    assert broken["last_error"] == "ValueError: no rows for [today]"

    done = batchline("schedules", *location)
    assert "broken has failed" in done.stdout
    assert "ValueError: no rows for [today]" in done.stdout
    assert f"{datetime.fromtimestamp(yearly['next_at'], UTC):%Y}-01-01 00:00" in done.stdout

    done = batchline("schedules", "--forget", "broken", *location)
    assert done.returncode == 0
    assert "broken" not in done.stdout
    done = batchline("schedules", "--forget", "broken", *location)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no schedule 'broken'" in done.stderr


async def _until_listed(listed: Any) -> None:
    def complete() -> bool:
        found = listed()
        return bool(
            len(found) == 3 and found["often"]["last_batch_id"] and found["broken"]["last_error"] is not None
        )

    await asyncio.to_thread(wait_for, "a batch and an error", complete)


def test_a_tenant_without_schedules_is_one_sentence(database_url: str, tmp_path: Path) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    done = batchline("schedules", *location)
    assert done.returncode == 0
    assert "the tenant default has no schedules" in done.stdout
