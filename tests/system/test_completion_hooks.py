"""Completion hooks of real processes: they run at least once whatever is killed, and once if nothing is."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.hooks import recorded
from tests.support.processes import (
    batchline,
    kill,
    logged,
    simulated,
    start,
    status,
    submit,
    working,
    write_requests,
)
from tests.support.server_process import ended, served
from tests.support.server_process import submit as submit_over_http
from tests.support.waiting import wait_for

# Writes its input and its environment into a new folder below the one that its argument names.
PROGRAM = """#!{python}
import json, os, pathlib, sys, tempfile
folder = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1]))
(folder / "environment.json").write_text(json.dumps(dict(os.environ)))
(folder / "arguments.json").write_text(json.dumps(sys.argv[1:]))
(folder / "event.json").write_text(sys.stdin.read())
"""
SECRETS = {
    "OPENAI_API_KEY": "sk-secret-1",
    "PGPASSWORD": "secret-2",
    "SOME_TOKEN": "secret-3",
    "AWS_SECRET_ACCESS_KEY": "secret-4",
}


class Recorder:
    """A program that records its calls, and the command that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "calls"
        self.folder.mkdir()
        self.program = folder / "record"
        self.program.write_text(PROGRAM.format(python=sys.executable))
        self.program.chmod(0o755)

    def command(self, *arguments: str) -> str:
        return shlex.join([str(self.program), str(self.folder), *arguments])

    def read(self, name: str) -> list[Any]:
        return [found for call in sorted(self.folder.iterdir()) for found in _content(call / f"{name}.json")]

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = wait_for(
            f"{count} calls", lambda: len(found := self.read("event")) >= count and found
        )
        assert len(events) == count
        return events


def _content(path: Path) -> list[Any]:
    """What a hook has written; nothing while it is writing."""
    try:
        return [json.loads(path.read_text())]
    except (FileNotFoundError, json.JSONDecodeError):
        return []


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return write_requests(tmp_path / "in.jsonl", 3)


def rows(database: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(query.encode()).fetchall()


@contextmanager
def deliveries_locked(database: str) -> Iterator[None]:
    """Whoever wants to read or write a delivery to a hook waits, and at the end loses its connection."""
    with psycopg.connect(database) as connection:
        connection.execute("LOCK TABLE batchline.hook_deliveries")
        yield
        # The server would run what a killed process has asked for: it could take a delivery for the dead.
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        )


def has_ended(database: str) -> bool:
    return bool(rows(database, "SELECT 1 FROM batchline.batches WHERE ended_at IS NOT NULL"))


def listed(location: tuple[str, ...], *arguments: str) -> list[dict[str, Any]]:
    done = batchline("hooks", *arguments, "--json", *location)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["data"]
    return found


# Workers


def test_a_worker_runs_its_hook_without_a_shell_and_without_secrets(
    database_url: str, tmp_path: Path, location: tuple[str, ...], inputs: Path, recorder: Recorder
) -> None:
    options = ("--on-end-command", recorder.command("$(id)", "a b", ";"), "--on-end-env", "CHAT_URL")
    variables = {**SECRETS, "CHAT_URL": "https://chat.example"}
    with simulated() as upstream, working(database_url, tmp_path / "data", *options, **variables):
        batch = submit(inputs, upstream.url, *location)
        (event,) = recorder.wait_for(1)
    assert event["type"] == "batch.completed"
    assert event["data"]["id"] == batch
    counts = event["data"]["request_counts"]
    assert (counts["total"], counts["completed"], counts["failed"]) == (3, 3, 0)
    assert recorder.read("arguments") == [[str(recorder.folder), "$(id)", "a b", ";"]]
    (environment,) = recorder.read("environment")
    assert environment["CHAT_URL"] == "https://chat.example"
    assert environment["PATH"]
    assert not SECRETS.keys() & environment.keys()
    assert "secret" not in json.dumps(environment)


def test_a_worker_without_the_hook_consumes_nothing_of_it(
    database_url: str, tmp_path: Path, location: tuple[str, ...], inputs: Path, recorder: Recorder
) -> None:
    hook = ("--on-end-command", recorder.command())
    assert batchline("worker", "--drain", *location, *hook).returncode == 0
    with simulated() as upstream:
        batch = submit(inputs, upstream.url, *location)
        assert batchline("worker", "--drain", *location).returncode == 0
    assert status(batch, *location)["status"] == "completed"
    assert rows(database_url, "SELECT count(*) FROM batchline.outbox WHERE delivered_at IS NULL") == [(0,)]
    assert [each["state"] for each in listed(location)] == ["waiting"]
    assert recorder.read("event") == []
    assert batchline("worker", "--drain", *location, *hook).returncode == 0
    (event,) = recorder.wait_for(1)
    assert event["data"]["id"] == batch
    assert [(each["state"], each["attempts"]) for each in listed(location, batch)] == [("delivered", 1)]


def test_two_workers_with_the_same_hook_run_it_once_for_each_batch(
    database_url: str, tmp_path: Path, location: tuple[str, ...], recorder: Recorder
) -> None:
    hook = ("--on-end-command", recorder.command())
    with (
        simulated() as upstream,
        working(database_url, tmp_path / "data", *hook),
        working(database_url, tmp_path / "data", *hook),
    ):
        inputs = [write_requests(tmp_path / f"{n}.jsonl", n) for n in range(1, 7)]
        batches = [submit(each, upstream.url, *location) for each in inputs]
        events = recorder.wait_for(len(batches))
        wait_for("all recorded", lambda: {each["state"] for each in listed(location)} == {"delivered"})
    assert sorted(event["data"]["id"] for event in events) == sorted(batches)


def test_a_worker_killed_between_the_end_of_a_batch_and_its_hook_costs_no_hook(
    database_url: str, tmp_path: Path, location: tuple[str, ...], inputs: Path, recorder: Recorder
) -> None:
    hook = ("--on-end-command", recorder.command())
    registered = "SELECT 1 FROM batchline.hooks"
    with simulated() as upstream, working(database_url, tmp_path / "data", *hook) as worker:
        wait_for("the hook to be registered", lambda: rows(database_url, registered))
        with deliveries_locked(database_url):
            batch = submit(inputs, upstream.url, *location)
            wait_for("the batch to end", lambda: has_ended(database_url))
            kill(worker)
        assert recorder.read("event") == []
        with working(database_url, tmp_path / "data", *hook):
            (event,) = recorder.wait_for(1)
    assert event["data"]["id"] == batch
    assert event["attempt"] == 1


def test_a_worker_killed_while_its_hook_runs_is_followed_by_another_run_of_the_hook(
    database_url: str, tmp_path: Path, location: tuple[str, ...], inputs: Path, recorder: Recorder
) -> None:
    # It hangs the first time only.
    script = tmp_path / "hangs-once"
    script.write_text(
        f"#!/bin/sh\nif mkdir {tmp_path}/first; then echo $$ > {tmp_path}/pid; exec sleep 1000; fi\n"
        f"exec {recorder.command()}\n"
    )
    script.chmod(0o755)
    hook = ("--on-end-command", str(script))
    with simulated() as upstream:
        with working(database_url, tmp_path / "data", *hook) as worker:
            submit(inputs, upstream.url, *location)
            pid = wait_for("the hook", lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
            kill(worker)
        subprocess.run(["kill", "-9", pid.strip()], check=True)
        (delivery,) = listed(location)
        assert delivery["state"] == "running"
        # Its lease ends.
        with psycopg.connect(database_url) as connection:
            connection.execute(
                "UPDATE batchline.hook_deliveries SET available_at = now(), running_until = now()"
            )
        with working(database_url, tmp_path / "data", *hook):
            (event,) = recorder.wait_for(1)
    assert event["attempt"] == 2


def test_a_hook_that_hangs_or_fails_changes_no_status_and_is_listed(
    database_url: str, tmp_path: Path, location: tuple[str, ...], inputs: Path
) -> None:
    (tmp_path / "operators.py").write_text(
        "import time\n"
        "def hang(event):\n    while True: time.sleep(100)\n"
        "def fail(event): raise ValueError('the mail server is down')\n"
    )
    # Long enough that the other one starts and fails within it.
    options = ("--on-end", "operators:hang,operators:fail", "--on-end-timeout", "10")
    with simulated() as upstream:
        batch = submit(inputs, upstream.url, *location)
        done = batchline("worker", "--drain", *options, *location, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert status(batch, *location)["status"] == "completed"
    found = {each["hook"]: each for each in listed(location, batch)}
    assert found["operators:hang"]["error"] == "it did not end within 10 s and was killed"
    assert found["operators:fail"]["error"] == "it ended with exit code 1"
    assert found["operators:fail"]["output"].endswith("ValueError: the mail server is down\n")
    assert {each["state"] for each in found.values()} == {"waiting"}
    text = batchline("hooks", *location).stdout
    assert "the mail server is down" in text
    assert "operators:hang" in text


def test_a_stuck_batch_is_repaired_finalized_and_reported_by_a_running_worker(
    database_url: str, tmp_path: Path, location: tuple[str, ...], inputs: Path, recorder: Recorder
) -> None:
    with simulated() as upstream:
        batch = submit(inputs, upstream.url, *location)
        with working(database_url, tmp_path / "data", "--on-end-command", recorder.command()):
            recorder.wait_for(1)
            # As if the last settle had not frozen it, and nobody had written its files.
            with psycopg.connect(database_url) as connection:
                connection.execute(
                    "UPDATE batchline.batches SET finalizing_at = NULL, finalizer = NULL,"
                    " completed_at = NULL, output_file_id = NULL, summary = NULL"
                )
                connection.execute(
                    "UPDATE batchline.maintenance_tasks SET due_at = now() WHERE name = 'unfrozen'"
                )
            wait_for("the repair", lambda: status(batch, *location)["status"] == "completed")
            events = recorder.wait_for(2)
    assert [event["data"]["id"] for event in events] == [batch] * 2
    assert batchline("doctor", *location).returncode == 0


# serve


def test_the_worker_of_a_server_runs_hooks_with_the_batch_as_the_api_shows_it(
    database_url: str, tmp_path: Path, inputs: Path, recorder: Recorder
) -> None:
    with (
        simulated() as upstream,
        served(
            database_url, tmp_path, "--upstream", f"{upstream.url}/v1", "--on-end-command", recorder.command()
        ) as server,
        server.client() as client,
    ):
        batch = ended(client, submit_over_http(client, inputs))
        (event,) = recorder.wait_for(1)
        answer = client.batches.with_raw_response.retrieve(batch.id).http_response.json()
    assert event["data"] == answer
    assert event["object"] == "event"
    assert event["id"].startswith("evt_")


# run


def test_run_runs_its_hook_after_the_output_is_written_and_not_again(
    tmp_path: Path, location: tuple[str, ...], inputs: Path
) -> None:
    folder = tmp_path / "got"
    folder.mkdir()
    (tmp_path / "operators.py").write_text(
        "import json, os, pathlib\n"
        "def done(event):\n"
        f"    event['lines'] = len(open({str(tmp_path / 'in.output.jsonl')!r}).readlines())\n"
        f"    pathlib.Path({str(folder)!r}, str(os.getpid())).write_text(json.dumps(event))\n"
    )
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--on-end", "operators:done", "--json")
        outcomes = [batchline(*command, *location, PYTHONPATH=str(tmp_path)) for _ in range(2)]
    assert [each.returncode for each in outcomes] == [0, 0], outcomes
    (event,) = recorded(folder)
    assert (event["data"]["status"], event["lines"]) == ("completed", 3)
    for each in outcomes:
        assert [(hook["hook"], hook["state"]) for hook in json.loads(each.stdout)["hooks"]] == [
            ("operators:done", "delivered")
        ]


def test_a_run_killed_before_its_hook_runs_it_when_it_is_started_again(
    database_url: str, tmp_path: Path, location: tuple[str, ...], inputs: Path, recorder: Recorder
) -> None:
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--on-end-command", recorder.command())
        with deliveries_locked(database_url):
            process = start(*command, *location)
            wait_for("the batch to end", lambda: has_ended(database_url))
            kill(process)
        assert recorder.read("event") == []
        done = batchline(*command, *location)
    assert done.returncode == 0, done.stderr
    recorder.wait_for(1)


def test_a_failed_hook_leaves_the_exit_code_of_run_and_is_tried_again_by_the_same_command(
    tmp_path: Path, location: tuple[str, ...], inputs: Path
) -> None:
    script = tmp_path / "fails-once"
    script.write_text(f"#!/bin/sh\nif mkdir {tmp_path}/first; then exit 7; fi\n")
    script.chmod(0o755)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--on-end-command", str(script))
        first = batchline(*command, *location)
        second = batchline(*command, *location)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "it ended with exit code 7" in first.stderr
    assert "batchline run" in first.stderr
    assert "failed" not in second.stderr
    assert [(each["state"], each["attempts"]) for each in listed(location)] == [("delivered", 2)]


# What is refused


@pytest.mark.parametrize("command", ["run", "worker", "serve"])
@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--on-end", "absent_module:done", "No module named 'absent_module'"),
        ("--on-end", "json:absent", "has no attribute 'absent'"),
        ("--on-end", "absent", "give module:function, or the name of an entry point"),
        ("--on-end", "a b", "must be a list of module:function"),
        ("--on-end-command", "/absent/program -x", "there is no program '/absent/program'"),
        ("--on-end-command", "echo 'open", "must be a program and its arguments"),
        ("--on-end-timeout", "0", "must be a time"),
        ("--on-end-env", "A=1", "must be a list of names of environment variables"),
    ],
)
def test_a_bad_hook_is_refused_at_the_start(
    tmp_path: Path, inputs: Path, command: str, option: str, value: str, reason: str
) -> None:
    arguments = (str(inputs), "--upstream", "http://127.0.0.1:9") if command == "run" else ()
    done = batchline(command, *arguments, option, value, "--data-dir", str(tmp_path / "data"), COLUMNS="1000")
    assert done.returncode == 2
    assert reason in " ".join(done.stderr.split())
    assert not (tmp_path / "data").exists()


def test_hooks_of_a_server_without_a_worker_are_refused(tmp_path: Path) -> None:
    done = batchline("serve", "--no-worker", "--on-end-command", "true", "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 2
    assert "hooks run in workers" in done.stderr


def test_the_database_has_no_hook_that_a_worker_would_run(
    database_url: str, tmp_path: Path, location: tuple[str, ...], inputs: Path, recorder: Recorder
) -> None:
    """A name in the database is only a name, even if it looks like a command or a function."""
    with psycopg.connect(database_url) as connection:
        for name in (recorder.command(), "os:system", str(recorder.program)):
            connection.execute("INSERT INTO batchline.hooks (name) VALUES (%s)", [name])
    with simulated() as upstream, logged(tmp_path / "log", "worker", *location, "--on-end-command", "true"):
        batch = submit(inputs, upstream.url, *location)

        def own_hook_ran() -> bool:
            found = {each["hook"]: each["state"] for each in listed(location, batch)}
            return len(found) == 4 and list(found.values()).count("delivered") == 1

        wait_for("the worker's own hook", own_hook_ran)
    assert recorder.read("event") == []
