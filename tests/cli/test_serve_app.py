"""`batchline serve --app` and `batchline worker module:app --with-upstreams`, as real processes: governed
Python operations over HTTP, and one worker for all kinds of work."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.operations_client import refused, submit
from tests.support.processes import batchline, simulated, start, write_requests
from tests.support.processes import kill as kill_process
from tests.support.server_process import Served, ended, served
from tests.support.server_process import submit as submit_file
from tests.support.ui_process import displayed
from tests.support.waiting import LIMIT, wait_for

_JOBS = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from batchline import Batchline

app = Batchline()
here = Path(__file__).parent


@dataclass
class Resize:
    vm: str
    cpu: int = 1
    env: str = "test"
    pin: str = ""


@app.governed(approval="env == 'production'", redact=["pin"], largest_batch=50)
@app.operation(concurrency=4)
def resize(item: Resize) -> dict[str, str]:
    "Change the size of a machine"
    with open(here / "ran", "a") as file:
        file.write(f"{item.vm}\\n")
    while item.env == "gated" and not (here / "gate").exists():
        time.sleep(0.01)
    return {"vm": item.vm, "note": f"the pin was {item.pin}"}


@app.operation
async def square(number: int) -> int:
    return number * number
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "jobs.py").write_text(_JOBS)
    return folder


@contextmanager
def serving(database_url: str, folder: Path, *options: str) -> Iterator[Served]:
    """A server with the app. Its settings are in the folder."""
    config = folder / "batchline.toml"
    if not config.exists():
        config.write_text("[limits]\ncooldown_seconds = 0\n")
    location = ("--config", str(config), "--app", "jobs:app")
    with served(database_url, folder, *location, *options, PYTHONPATH=str(folder)) as server:
        yield server


@contextmanager
def caller(server: Served, key: str) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {key}"}
    with httpx2.Client(base_url=f"{server.url}/api/v1", headers=headers, timeout=LIMIT) as client:
        yield client


def key_of(database_url: str, name: str, *options: str) -> str:
    made = batchline("keys", "create", name, *options, "--database", database_url)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def over(client: httpx2.Client, batch_id: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        batch: dict[str, Any] = client.get(f"/batches/{batch_id}").json()
        return (
            batch if batch["pending_count"] == 0 and batch["status"] not in ("PENDING", "RUNNING") else None
        )

    batch = wait_for(f"the end of {batch_id}", found)
    assert isinstance(batch, dict)
    return batch


def ran(folder: Path) -> list[str]:
    path = folder / "ran"
    return path.read_text().splitlines() if path.exists() else []


def machines(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"vm": f"vm-{number}", **more} for number in range(count)]


def test_users_submit_a_python_operation_over_http_by_its_rules(database_url: str, folder: Path) -> None:
    ann, bob = key_of(database_url, "ann"), key_of(database_url, "bob", "--role", "approver")
    with (
        serving(database_url, folder) as server,
        caller(server, ann) as user,
        caller(server, bob) as approver,
    ):
        listed = {each["name"]: each for each in user.get("/operations").json()["data"]}
        assert set(listed) == {"approve", "resize"}, "square is not governed"
        assert listed["resize"]["description"] == "Change the size of a machine"
        assert listed["resize"]["item_schema"]["required"] == ["vm"]
        assert listed["resize"]["item_schema"]["properties"]["cpu"]["type"] == "integer"

        wrong = user.post(
            "/operations/resize/batches", json={"items": [*machines(1), {"vm": "a", "cpu": "x"}]}
        )
        assert refused(wrong, 400, "INVALID_BATCH_REQUEST")["param"] == "items[1].cpu"
        large = user.post("/operations/resize/batches", json={"items": machines(51)})
        assert refused(large, large.status_code, "BATCH_SIZE_EXCEEDED")

        items = machines(2, env="production", pin="geheim77")
        batch = submit(user, items, "resize")["batch_id"]
        assert user.get(f"/batches/{batch}").json()["status"] == "PENDING_APPROVAL"
        assert user.post(f"/batches/{batch}/approve", json={}).status_code == 403
        assert not ran(folder)
        assert approver.post(f"/batches/{batch}/approve", json={"reason": "agreed"}).status_code == 200
        found = over(user, batch)
        assert (found["status"], found["success_count"]) == ("COMPLETED", 2)
        assert [child["result"]["note"] for child in found["children"]] == ["the pin was ***REDACTED***"] * 2
        assert "geheim77" not in json.dumps(found)
    audited = batchline("audit", "--database", database_url).stdout
    acts = [entry for line in audited.splitlines() if (entry := json.loads(line)).get("batch_id") == batch]
    assert [(act["actor"], act["action"]) for act in acts[:2]] == [
        ("ann", "batch.submitted"),
        ("bob", "batch.approved"),
    ]
    assert "geheim77" not in audited


def test_a_user_with_too_much_pending_work_gets_429(database_url: str, folder: Path) -> None:
    (folder / "batchline.toml").write_text("[limits]\ncooldown_seconds = 0\nuser_pending_parents = 1\n")
    ann = key_of(database_url, "ann")
    with serving(database_url, folder) as server, caller(server, ann) as user:
        submit(user, machines(1, env="production"), "resize")
        answer = user.post("/operations/resize/batches", json={"items": machines(1)})
        refused(answer, 429, "RATE_LIMIT_EXCEEDED")


def test_after_kill_9_the_next_worker_runs_the_items_and_each_has_one_result(
    database_url: str, folder: Path
) -> None:
    ann = key_of(database_url, "ann")
    with serving(database_url, folder) as server, caller(server, ann) as user:
        batch = submit(user, machines(12, env="gated"), "resize")["batch_id"]
        wait_for("four items that run", lambda: len(ran(folder)) == 4)
        first = server.wait_for_worker()
        first.kill()
        server.wait_for_worker(other_than=first.pid)
        wait_for("items that run again", lambda: len(ran(folder)) > 4)
        (folder / "gate").touch()
        found = over(user, batch)
    assert (found["status"], found["success_count"]) == ("COMPLETED", 12)
    assert set(ran(folder)) == {each["vm"] for each in machines(12)}


def test_one_worker_serves_an_app_and_the_lines_of_upstreams(database_url: str, folder: Path) -> None:
    path = write_requests(folder / "in.jsonl", 20)
    ann = key_of(database_url, "ann")
    with (
        simulated() as upstream,
        serving(database_url, folder, "--upstream", upstream.url) as server,
        caller(server, ann) as user,
    ):
        governed = submit(user, machines(3), "resize")["batch_id"]
        client = server.client(ann)
        lines = ended(client, submit_file(client, path))
        assert lines.request_counts is not None
        assert (lines.status, lines.request_counts.completed) == ("completed", 20)
        assert over(user, governed)["success_count"] == 3
        worker = server.wait_for_worker()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LIMIT) == 0, "".join(server.complained)
        assert not worker.is_running()


def test_a_server_without_the_app_does_not_know_its_operations(database_url: str, folder: Path) -> None:
    ann = key_of(database_url, "ann")
    with serving(database_url, folder, "--no-worker") as server, caller(server, ann) as user:
        batch = submit(user, machines(1, pin="geheim77"), "resize")["batch_id"]
    with served(database_url, folder, "--no-worker") as server, caller(server, ann) as user:
        answer = user.post("/operations/resize/batches", json={"items": machines(1)})
        refused(answer, 404, "OPERATION_NOT_FOUND")
        assert user.get("/operations").json()["data"] == []
        assert user.get(f"/batches/{batch}").json()["child_count"] == 1, "it is still there"


def _worked(database_url: str, folder: Path, *arguments: str) -> tuple[int, str, str]:
    environment = {
        "BATCHLINE_DATABASE_URL": database_url,
        "BATCHLINE_DATA_DIR": str(folder / "data"),
        "PYTHONPATH": str(folder),
    }
    process = start("worker", *arguments, **environment)
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        kill_process(process)
    return process.returncode, out, err


def test_a_worker_of_both_kinds_that_drains_leaves_nothing(database_url: str, folder: Path) -> None:
    ann = key_of(database_url, "ann")
    path = write_requests(folder / "in.jsonl", 10)
    with simulated() as upstream:
        with (
            serving(database_url, folder, "--no-worker", "--upstream", upstream.url) as server,
            caller(server, ann) as user,
        ):
            submit(user, machines(3), "resize")
            submit_file(server.client(ann), path)
        # A worker without the app, and with operations of its own, leaves them alone.
        code, out, err = _worked(database_url, folder, "--drain", "--json", "--upstream", upstream.url)
        assert (code, json.loads(out)["claimed"]) == (0, 10), err
        code, out, err = _worked(
            database_url,
            folder,
            "jobs:app",
            "--with-upstreams",
            "--drain",
            "--json",
            "--upstream",
            upstream.url,
        )
    assert (code, json.loads(out)) == (0, {"claimed": 3, "completed": 3, "failed": 0, "held": []}), err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--with-upstreams",), "are for an app"),
        (("jobs:app", "--with-upstreams", "--database", "x"), "--database is the app's own"),
        (("jobs:app", "--with-upstreams", "--max-items", "3"), "--max-items means nothing"),
        (("jobs:nothing", "--with-upstreams"), "has no 'nothing'"),
    ],
)
def test_what_a_worker_of_both_kinds_cannot_do_is_refused(
    database_url: str, folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = _worked(database_url, folder, *arguments)
    assert code == 2
    assert message in err


_COLLIDING = """
[[upstreams]]
name = "cluster"
base_url = "http://127.0.0.1:9"

[[operations]]
name = "resize"
upstream = "cluster"
path = "/resize"
"""


@pytest.mark.parametrize(
    ("app", "config", "message"),
    [
        ("Batchline()", _COLLIDING, "another operation has the name 'resize'"),
        ("Batchline('postgresql://127.0.0.1:9/other')", "", "the app uses another database"),
        ("3 / 0", "", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_an_app_that_does_not_fit_ends_the_server_before_it_starts(
    database_url: str, folder: Path, app: str, config: str, message: str
) -> None:
    (folder / "jobs.py").write_text(_JOBS.replace("Batchline()", app))
    (folder / "batchline.toml").write_text(config)
    location = ("--database", database_url, "--data-dir", str(folder / "data"))
    options = ("--config", str(folder / "batchline.toml"), "--port", "0", "--no-worker")
    done = batchline("serve", "--app", "jobs:app", *location, *options, PYTHONPATH=str(folder))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ops_commands_know_the_operations_of_an_app(database_url: str, folder: Path) -> None:
    (folder / "items.json").write_text(json.dumps([{"vm": "a", "env": "production", "pin": "1234"}]))
    location = ("--database", database_url, "--data-dir", str(folder / "data"))

    def ops(*arguments: str, at: tuple[str, ...] = location) -> Any:
        done = batchline("ops", *arguments, "--app", "jobs:app", "--json", *at, PYTHONPATH=str(folder))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    listed = {each["name"]: each for each in ops("list", at=())["data"]}
    assert listed["resize"]["redact"] == ["pin"]
    batch = ops("submit", "resize", str(folder / "items.json"), "--as", "ann")["batch_id"]
    assert ops("approve", batch, "--as", "bob")["approval"] == "approved"
    (child,) = ops("show", batch)["children"]
    assert child["item"]["vm"] == "a"
    assert child["item"]["pin"] != "1234"

    elsewhere = "Batchline('postgresql://127.0.0.1:9/other')"
    (folder / "jobs.py").write_text(_JOBS.replace("Batchline()", elsewhere))
    done = batchline("ops", "show", batch, "--app", "jobs:app", *location, PYTHONPATH=str(folder))
    assert done.returncode == 2
    assert "the app uses another database" in done.stderr


def test_the_local_dashboard_knows_the_operations_of_an_app(database_url: str, folder: Path) -> None:
    with (
        displayed(database_url, folder, "--app", "jobs:app", PYTHONPATH=str(folder)) as ui,
        httpx2.Client(base_url=ui.url, timeout=LIMIT) as http,
    ):
        http.get(ui.address)
        listed = http.get("/api/v1/operations").json()["data"]
    assert "resize" in [each["name"] for each in listed]
