"""A full disk is called by its name, stops a command within a bound, and loses nothing."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import psycopg
import pytest

from batchline.api.database_disk import DatabaseDisk
from tests.support.disks import Disk, small_disk
from tests.support.processes import (
    PYTHON,
    batchline,
    kill,
    read_lines,
    simulated,
    start,
    wait_for_executions,
    write_requests,
)
from tests.support.serving import serving
from tests.support.waiting import wait_for

# The cluster of a new data folder takes 60 MB.
DATA_DISK = 130
BOUND = 100.0


@pytest.fixture
def data_disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", DATA_DISK) as disk:
        yield disk


def write_large_requests(path: Path, count: int, size: int) -> Path:
    """Lines that do not compress."""
    with path.open("w") as stream:
        for number in range(count):
            message = {"role": "user", "content": os.urandom(size // 2).hex()}
            body = {"model": "sim-small", "messages": [message]}
            line = {"custom_id": f"q-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            stream.write(json.dumps(line) + "\n")
    return path


def assert_full(done: subprocess.CompletedProcess[str], where: Path) -> None:
    assert done.returncode == 2, done.stderr
    assert "disk full" in done.stderr
    assert str(where) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.attack
@pytest.mark.timeout(600)
def test_a_disk_that_fills_up_while_a_file_comes_in_stops_the_command_and_no_later_one(
    tmp_path: Path, data_disk: Disk
) -> None:
    inputs = write_large_requests(tmp_path / "in.jsonl", 2_000, 40_000)
    data = data_disk.path / "data"
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--data-dir", str(data))
        assert_full(batchline(*command), data)
        later = batchline("list", "--data-dir", str(data))
        assert later.returncode == 0 or "disk full" in later.stderr
        data_disk.grow(2_000)
        assert batchline(*command).returncode == 0
        seen = upstream.stats()
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 2_000
    assert (seen["executed"], seen["keys_executed_twice"]) == (2_000, 0)


@pytest.mark.attack
@pytest.mark.timeout(600)
def test_a_disk_that_fills_up_while_lines_run_stops_the_run_and_the_same_command_continues(
    tmp_path: Path, data_disk: Disk
) -> None:
    inputs = write_large_requests(tmp_path / "in.jsonl", 3_000, 4_000)
    data = data_disk.path / "data"
    # Slow enough that it still runs when the disk is filled.
    with simulated("--latency", "80") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "-c", "16", "--data-dir", str(data))
        process = start(*command)
        wait_for_executions(upstream, 100)

        def ended() -> bool:
            data_disk.fill()  # recovery gives some room back
            return process.poll() is not None

        wait_for("the run to end", ended, BOUND)
        _, errors = process.communicate()
        assert process.returncode == 2, errors
        assert f"no space left in {data}" in errors
        data_disk.fill()  # it may have given room back as it ended
        assert_full(batchline("list", "--data-dir", str(data)), data)
        data_disk.clear()
        data_disk.grow(2_000)
        done = batchline(*command)
        assert done.returncode == 0, done.stderr
        seen = upstream.stats()
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 3_000
    assert seen["distinct_keys"] == 3_000


def test_a_disk_without_room_for_a_new_database_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "tiny", 20) as disk:
        data = disk.path / "data"
        assert_full(batchline("list", "--data-dir", str(data)), data)
        disk.grow(300)
        assert batchline("list", "--data-dir", str(data)).returncode == 0


def test_an_output_on_a_full_disk_is_written_by_the_same_command_once_there_is_room(
    tmp_path: Path, database_url: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    with small_disk(tmp_path / "small", 1) as disk, simulated() as upstream:
        disk.fill()
        output = disk.path / "out.jsonl"
        location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
        command = ("run", str(inputs), "--upstream", upstream.url, "-o", str(output), *location)
        assert_full(batchline(*command), output)
        assert [path.name for path in disk.path.iterdir()] == ["ballast"]
        disk.clear()
        done = batchline(*command)
        assert done.returncode == 0, done.stderr
        assert len(read_lines(output)) == 300
        assert upstream.stats()["executed"] == 300


def test_a_run_whose_objects_have_no_room_says_so_and_ends_once_they_have(
    tmp_path: Path, database_url: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    with small_disk(tmp_path / "small", 1) as disk, simulated() as upstream:
        disk.fill()
        process = start(
            *("run", str(inputs), "--upstream", upstream.url, "--database", database_url),
            *("--data-dir", str(disk.path / "data")),
        )
        assert process.stdout is not None
        displayed = ""
        while "disk full" not in displayed:
            displayed = process.stdout.readline()
            assert displayed, process.communicate()
        assert str(disk.path) in displayed
        disk.clear()
        _, errors = process.communicate(timeout=BOUND)
        assert process.returncode == 0, errors
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 300


def test_the_server_says_that_its_disk_is_full(tmp_path: Path, database_url: str) -> None:
    with (
        small_disk(tmp_path / "small", 64) as disk,
        serving(database_url, disk.path) as server,
        server.http() as http,
        server.client() as client,
    ):
        assert http.get("/readyz").status_code == 200
        disk.fill()
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()["objects"]) == (503, "disk full")
        with pytest.raises(openai.InternalServerError) as refused:
            client.files.create(file=("in.jsonl", os.urandom(3_000_000)), purpose="user_data")
        assert (refused.value.status_code, refused.value.code) == (503, "disk_full")
        upload = client.uploads.create(bytes=3_000_000, filename="x", mime_type="text/plain", purpose="batch")
        with pytest.raises(openai.InternalServerError) as refused:
            client.uploads.parts.create(upload.id, data=os.urandom(3_000_000))
        assert (refused.value.status_code, refused.value.code) == (503, "disk_full")
        wait_for("the room of what was refused", lambda: not list(disk.path.glob("objects/*/*")))
        disk.clear()
        assert http.get("/readyz").status_code == 200
        assert client.files.create(file=("in.jsonl", b"hello"), purpose="user_data").bytes == 5


# As PostgreSQL says it when the disk of its tables is full.
FULL_DATABASE = b"""
CREATE FUNCTION say_full() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END$$;
CREATE TRIGGER full_disk BEFORE INSERT ON batchline.files EXECUTE FUNCTION say_full();
"""


def test_the_server_says_that_the_disk_of_its_database_is_full(tmp_path: Path, database_url: str) -> None:
    line = write_requests(tmp_path / "in.jsonl", 1)
    with (
        serving(database_url, tmp_path) as server,
        server.http() as http,
        server.client() as client,
        psycopg.connect(database_url, autocommit=True) as database,
    ):
        assert http.get("/readyz").json()["database"] == "ok"
        database.execute(FULL_DATABASE)
        with pytest.raises(openai.InternalServerError) as refused:
            client.files.create(file=line, purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (503, "disk_full")
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()["database"]) == (503, "disk full")


async def test_a_full_disk_of_the_database_is_not_reported_for_ever() -> None:
    now = 0.0
    disk = DatabaseDisk(clock=lambda: now)
    assert not await disk.is_full()
    disk.refused()
    assert await disk.is_full()
    now = 61.0
    assert not await disk.is_full()


def test_the_server_measures_the_disk_of_its_embedded_database(tmp_path: Path, data_disk: Disk) -> None:
    process = start(
        *("serve", "--port", "0", "--no-auth", "--no-worker", "--data-dir", str(data_disk.path / "data")),
        *("--objects", (tmp_path / "objects").as_uri()),
    )
    try:
        assert process.stdout is not None
        listening = next(line for line in process.stdout if line.startswith("listening on "))
        url = listening.split()[2].removesuffix("/v1")
        assert httpx2.get(f"{url}/readyz", timeout=60).json()["database"] == "ok"
        data_disk.fill()
        ready = httpx2.get(f"{url}/readyz", timeout=60)
        assert (ready.status_code, ready.json()["database"]) == (503, "disk full")
        data_disk.clear()
        assert httpx2.get(f"{url}/readyz", timeout=60).json()["database"] == "ok"
    finally:
        kill(process, signal.SIGTERM)


def with_full_stdout(*arguments: str) -> str:
    """What the command says on standard error."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [PYTHON, "-m", "batchline", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_full_disk_behind_stdout_is_named(tmp_path: Path, database_url: str) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    said = with_full_stdout("list", "--json", *location)
    assert said == "error: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_that_cannot_be_written_is_an_error(option: str) -> None:
    assert with_full_stdout(option) == "error: the output cannot be written: No space left on device\n"


def test_a_usage_error_that_cannot_be_written_has_its_exit_code() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([PYTHON, "-m", "batchline", "nothing"], stderr=full, check=False)
    assert done.returncode == 2
